//! One row at one setting.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| topmass_fuzz::targets::row(bytes));
