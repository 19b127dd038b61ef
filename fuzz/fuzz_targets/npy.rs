//! The example's file reader.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| topmass_fuzz::targets::npy(bytes));
