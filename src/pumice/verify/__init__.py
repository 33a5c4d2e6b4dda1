"""`pumice verify`: does every GPU operator compute the right thing on a device?

The device may be a real GPU, through its driver alone, or an emulated AMD card that executes the
compiled machine code.
"""
