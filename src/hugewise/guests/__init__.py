"""Guests of QEMU as machines of hugewise: kernels, images, the agent, backing and its proof; docs/design/guests.md.

Imports `attempt` and the rooms below; nothing below knows QEMU. A kernel that is built is a recipe in `kernels.build`,
a key of QEMU a line in `qemu`; what a guest changes on the host goes to `host`, so that recovery can undo it.
"""
