//! Steps of a controller.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| topmass_fuzz::targets::mirostat(bytes));
