"""Guests of QEMU as machines of hugewise; docs/design/guests.md."""
