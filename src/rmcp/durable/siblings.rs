//! Servers of one process that share a courier: those with the same group of tasks have to be the same server.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A server that is there, as long as this is.
#[derive(Debug)]
pub(super) struct Sibling {
    /// The courier, by its node.
    node: String,
    group: String,
    tools: BTreeSet<String>,
}

static ALL: Mutex<Vec<Weak<Sibling>>> = Mutex::new(Vec::new());

impl Sibling {
    /// Errs with the other one's tools when there is another server in this group.
    pub(super) fn enter(node: String, group: String, tools: BTreeSet<String>) -> Result<Arc<Self>, String> {
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|sibling| sibling.strong_count() > 0);
        for other in all.iter().filter_map(Weak::upgrade) {
            if other.node == node && other.group == group && other.tools != tools {
                return Err(other.tools.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
            }
        }
        let sibling = Arc::new(Self { node, group, tools });
        all.push(Arc::downgrade(&sibling));
        Ok(sibling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_server_in_the_same_group_is_noticed_while_it_is_there() {
        let tools = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let enter = |node: &str, group: &str, names: &[&str]| {
            Sibling::enter(format!("test {node}"), group.into(), tools(names))
        };
        let first = enter("1", "a", &["x", "y"]).expect("alone");
        let _same = enter("1", "a", &["y", "x"]).expect("the same server");
        let _group = enter("1", "b", &["z"]).expect("another group");
        let _courier = enter("2", "a", &["z"]).expect("another courier");
        assert_eq!(enter("1", "a", &["z"]).expect_err("another server"), "x, y");
        drop((first, _same));
        enter("1", "a", &["z"]).expect("the others are gone");
    }
}
