"""Programs of a checkout: its set-up, its results pages, and what holds hugewise to its promises."""
