pub fn prefix(test: &str) -> String {
    format!("t:{}:{test}", std::process::id())
}
