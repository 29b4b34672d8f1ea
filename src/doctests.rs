//! The Rust blocks of the pages, compiled and run by `cargo test --doc`.

macro_rules! pages {
    ($($name:ident: $file:literal),* $(,)?) => {
        $(#[doc = include_str!(concat!("../", $file))] struct $name;)*
    };
}

pages! {
    Readme: "README.md",
    Delivery: "docs/delivery.md",
    Elicitation: "docs/elicitation.md",
    Failures: "docs/failures.md",
    Operating: "docs/operating.md",
    Protocol: "docs/protocol.md",
    States: "docs/states.md",
}

// With blocks that need it.
#[cfg(feature = "rmcp")]
pages! {
    Mcp: "docs/mcp.md",
    Tasks: "docs/tasks.md",
}
