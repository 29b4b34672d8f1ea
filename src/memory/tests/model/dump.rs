//! The whole stored state against the model's.

use super::super::support::Wire;
use super::drive::Driver;
use super::expect::{int, list, text};
use super::step::SESSIONS;
use super::world::{World, sid};

/// The first difference, if there is one.
pub(super) async fn differ(driver: &mut Driver, world: &World) -> Option<String> {
    let mut expected: Vec<(String, Wire)> = Vec::new();
    for session in 0..SESSIONS {
        let (s, sid) = (&world.sessions[session], sid(session));
        let records = s.queue.iter().map(|m| text(m.record())).collect();
        expected.push((format!("LRANGE q:{sid} 0 -1"), list(records)));
        let ends = if s.queue.is_empty() { int(-2) } else { int(s.queue_ends) };
        expected.push((format!("PEXPIRETIME q:{sid}"), ends));
        let letters = s.dead.iter().map(|l| text(l.entry())).collect();
        expected.push((format!("LRANGE dead:{sid} 0 -1"), list(letters)));
        let owner = s.owner.as_ref().map_or(Wire::Null, |(node, epoch)| text(format!("{node}:{epoch}")));
        expected.push((format!("HGET s {sid}"), owner));
        let look = s.look_again.map_or(Wire::Null, |at| text(at.to_string()));
        expected.push((format!("ZSCORE w {sid}"), look));
        for (id, until) in &s.known {
            expected.push((format!("EXISTS d:{sid}:{id}"), int(1)));
            if world.keys_expire {
                expected.push((format!("PEXPIRETIME d:{sid}:{id}"), int(*until)));
            }
        }
        if world.keys_expire && !s.dead.is_empty() {
            expected.push((format!("PEXPIRETIME dead:{sid}"), int(s.dead_ends)));
        }
    }
    let mut nodes: Vec<(u64, &String)> = world.nodes.iter().map(|(n, at)| (*at, n)).collect();
    nodes.sort();
    let nodes = nodes.iter().flat_map(|(at, n)| [text(n), text(at.to_string())]).collect();
    expected.push(("ZRANGE n 0 -1 WITHSCORES".into(), list(nodes)));
    // Nothing else is there: an id that leaves its key would show.
    let lists = world
        .sessions
        .iter()
        .map(|s| usize::from(!s.queue.is_empty()) + usize::from(!s.dead.is_empty()) + s.known.len());
    let indexes = usize::from(world.sessions.iter().any(|s| s.owner.is_some()))
        + usize::from(world.sessions.iter().any(|s| s.look_again.is_some()))
        + usize::from(!world.nodes.is_empty());
    let indexes = indexes + usize::from(world.own_ids_end.is_some());
    if let (true, Some(end)) = (world.keys_expire, world.own_ids_end) {
        expected.push(("PEXPIRETIME b:n:0".into(), int(end)));
    }
    let clock = usize::from(!world.keys_expire);
    for (command, expected) in expected {
        let found = driver.commands.words(&command).await;
        if found != expected {
            return Some(format!("at the end, {command}\n  stored   {found:?}\n  expected {expected:?}"));
        }
    }
    let keys = driver.commands.words("SCAN 0 COUNT 100000").await.items()[1].items().len();
    let expected = lists.sum::<usize>() + indexes + clock;
    (keys != expected).then(|| format!("at the end there are {keys} keys, expected {expected}"))
}
