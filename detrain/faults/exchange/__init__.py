"""Files of SASSIFI and NVBitFI: profiles, lists of injections, results; written as their scripts read them."""
