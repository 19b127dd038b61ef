//! Rows side by side.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| topmass_fuzz::targets::batch(bytes));
