"""hugewise: which page size should this workload run with, on this machine, and how sure are we?"""
