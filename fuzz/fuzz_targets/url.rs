#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| mcp_courier::fuzzing::url(text));
