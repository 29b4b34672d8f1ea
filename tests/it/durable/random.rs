//! Many tasks of every kind over several replicas, while workers and replicas are killed.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mcp_courier::rmcp::{DurableTasks, TaskLeg, TaskMode};
use mcp_courier::{CancellationToken, Courier};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorCode, ErrorData,
    Implementation, InputRequest, InputRequests, InputRequiredResult, JsonObject, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};

use super::support::{Client, Replica, accept, client, question, text_of};
use crate::support::fixture::{Fixture, Process};
use crate::support::wait::wait_until;

const KINDS: [&str; 6] = ["sleeps", "asks", "waits", "breaks", "errs", "panics"];
const TTL: Duration = Duration::from_secs(20);

/// How often each leg of each task was run, by task and number: the side effect.
type Effects = Arc<Mutex<HashMap<(String, u64), usize>>>;

#[derive(Clone)]
struct Chaos {
    effects: Effects,
}

fn text(text: &str) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
}

impl ServerHandler for Chaos {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("chaos", "1"))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let leg = TaskLeg::of(&context).expect("all of them are tasks");
        let key = (leg.task_id().to_owned(), leg.number);
        *self.effects.lock().expect("not poisoned").entry(key).or_default() += 1;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..80))).await;
        let n = request.arguments.as_ref().and_then(|arguments| arguments["n"].as_u64()).unwrap_or_default();
        let answered = request.input_responses.as_ref().and_then(|answers| answers.get("q"));
        match &*request.name {
            "asks" if leg.number < 2 => {
                let round = request.request_state.as_deref().unwrap_or("0").parse::<u64>().expect("our own");
                assert_eq!(round, leg.number, "the state is the one that the leg before left");
                let asked: InputRequests =
                    serde_json::from_value(json!({ "q": question("q") })).expect("a question");
                let mut asked = InputRequiredResult::from_input_requests(asked);
                asked.request_state = Some((leg.number + 1).to_string());
                Ok(asked.into())
            }
            "asks" => text(answered.expect("an answer")["content"]["value"].as_str().expect("text")),
            "waits" => {
                let asked: InputRequest = serde_json::from_value(question("q")).expect("a question");
                let answer = leg.request_input("q", asked).await?;
                text(answer["content"]["value"].as_str().expect("text"))
            }
            "breaks" => Err(ErrorData::new(ErrorCode(-32000), format!("broken {n}"), None)),
            "errs" => Ok(CallToolResult::error(vec![ContentBlock::text(n.to_string())]).into()),
            "panics" => {
                assert!(leg.attempt > 1, "the first time");
                text(&n.to_string())
            }
            _ => text(&n.to_string()),
        }
    }
}

fn chaos(effects: &Effects, courier: &Courier) -> DurableTasks<Chaos> {
    let all = DurableTasks::new(Chaos { effects: effects.clone() }, courier).settings(|tasks| tasks.ttl(TTL));
    KINDS.iter().fold(all, |all, kind| all.tool::<JsonObject>(*kind, TaskMode::Required))
}

/// Replicas of which one is gone now and then. A client tries the next.
#[derive(Clone)]
struct Site(Arc<Mutex<Vec<String>>>);

impl Site {
    async fn send(&self, client: &Client, method: &str, params: &Value) -> Value {
        let begin = Instant::now();
        loop {
            let urls = self.0.lock().expect("not poisoned").clone();
            let url = &urls[fastrand::usize(..urls.len())];
            match client.try_send(url, method, params.clone()).await {
                Ok((_, answer)) => return answer,
                Err(e) => assert!(begin.elapsed() < Duration::from_secs(20), "{e}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn get(&self, client: &Client, id: &str) -> Value {
        let answer = self.send(client, "tasks/get", &json!({ "taskId": id })).await;
        assert!(answer["result"].is_object(), "{answer}");
        answer["result"].clone()
    }
}

/// One task from its creation to its end: as a client would see to it.
async fn live(site: Site, n: usize) -> (Client, Value, &'static str) {
    let kind = KINDS[n % KINDS.len()];
    let client = client().caller(&format!("app|{}", n % 7));
    let call = json!({ "name": kind, "arguments": { "n": n } });
    let made = site.send(&client, "tools/call", &call).await["result"].clone();
    let id = made["taskId"].as_str().unwrap_or_else(|| panic!("a task: {made}"));
    let begin = Instant::now();
    let end = loop {
        let task = site.get(&client, id).await;
        assert_eq!(task["createdAt"], made["createdAt"]);
        match task["status"].as_str() {
            Some("working") => {}
            Some("input_required") => {
                let open = task["inputRequests"].as_object().expect("requests");
                let answers: BTreeMap<_, _> = open.keys().map(|key| (key, accept(&n.to_string()))).collect();
                let update = json!({ "taskId": id, "inputResponses": answers });
                let ack = site.send(&client, "tasks/update", &update).await;
                assert!(ack["result"].is_object(), "{ack}");
            }
            _ => break task,
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "stuck: {kind} {task}");
        tokio::time::sleep(Duration::from_millis(fastrand::u64(10..60))).await;
    };
    match kind {
        "breaks" => {
            assert_eq!(
                (end["status"].as_str(), &end["error"]["code"]),
                (Some("failed"), &json!(-32000)),
                "{end}"
            );
            assert_eq!(end["error"]["message"], format!("broken {n}"));
        }
        _ => {
            assert_eq!(
                (end["status"].as_str(), text_of(&end["result"])),
                (Some("completed"), &*n.to_string())
            );
            assert_eq!(end["result"]["isError"] == true, kind == "errs", "{end}");
        }
    }
    (client, end, kind)
}

/// Each task reaches the right end, and stays there; each leg's side effect happens, more than once only around kills; no
/// task is stuck, and after the time to live no key is left.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_tasks_over_three_replicas_reach_their_ends_while_workers_and_replicas_are_killed() {
    const CONCURRENCY: usize = 6;
    let t = Fixture::new("durable_chaos").await;
    let effects = Effects::default();
    let (over, kills) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let mut processes = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (builder, url, effects) = (t.builder(), t.server.url().to_owned(), effects.clone());
        let (over, kills) = (over.clone(), kills.clone());
        processes.spawn(async move {
            loop {
                let process = Process::start(builder.clone(), &url).await;
                let durable = chaos(&effects, &process.courier);
                let worker = durable.worker().concurrency(CONCURRENCY).max_attempts(100);
                let worker = worker.lease(Duration::from_millis(500)).backoff(Duration::from_millis(20));
                let starting = worker.start(durable.legs());
                let worker = process.runtime.spawn(starting).await.expect("no panic").expect("started");
                drop(durable);
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(fastrand::u64(100..900))) => {}
                    () = over.cancelled() => {
                        worker.shutdown(Duration::from_secs(2)).await;
                        return process.crash().await;
                    }
                }
                // Killed: nothing is given back.
                std::mem::forget(worker);
                process.crash().await;
                kills.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let urls = Arc::new(Mutex::new(vec![String::new(); 3]));
    for n in 0..3 {
        let (builder, url, effects) = (t.builder(), t.server.url().to_owned(), effects.clone());
        let (over, urls) = (over.clone(), urls.clone());
        processes.spawn(async move {
            loop {
                let process = Process::start(builder.clone(), &url).await;
                let durable = chaos(&effects, &process.courier);
                let serving = async move { Replica::start(&durable).await };
                let replica = process.runtime.spawn(serving).await.expect("no panic");
                urls.lock().expect("not poisoned")[n] = replica.url.clone();
                let ends = tokio::select! {
                    () = tokio::time::sleep(Duration::from_millis(fastrand::u64(500..1500))) => false,
                    () = over.cancelled() => true,
                };
                process.crash().await;
                if ends {
                    return;
                }
            }
        });
    }
    wait_until("three replicas", Duration::from_secs(20), || async {
        let urls = urls.lock().expect("not poisoned");
        if urls.iter().all(|url| !url.is_empty()) { Ok(()) } else { Err(format!("{urls:?}")) }
    })
    .await;
    let site = Site(urls);
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..200 {
        clients.spawn(live(site.clone(), n));
    }
    let mut ends = Vec::new();
    while let Some(end) = clients.join_next().await {
        let (client, end, kind) = end.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
        ends.push((client, end, kind, Instant::now()));
    }
    let (effects, kills) = (effects.lock().expect("not poisoned").clone(), kills.load(Ordering::SeqCst));
    let mut more = 0;
    for (client, end, kind, seen) in ends {
        let id = end["taskId"].as_str().expect("an id");
        // As long as it is kept for sure.
        if seen.elapsed() < TTL / 2 {
            let later = site.get(&client, id).await;
            assert_eq!(later["lastUpdatedAt"], end["lastUpdatedAt"], "the end is the end");
            assert_eq!(later["status"], end["status"]);
        }
        for leg in 0..if kind == "asks" { 3 } else { 1 } {
            let ran = effects.get(&(id.to_owned(), leg)).copied().unwrap_or_default();
            assert!(ran >= 1, "leg {leg} of a task that {kind} never ran");
            more += ran.saturating_sub(1 + usize::from(kind == "panics"));
        }
    }
    // A call whose answer died with its replica made a task that no client knows: it has its legs like any other.
    wait_until("no leg is stuck", Duration::from_secs(60), || async {
        let left: u64 = t.ask(&format!("ZCARD {}", t.key("legs:chaos", ""))).await;
        if left == 0 { Ok(()) } else { Err(format!("{left} legs")) }
    })
    .await;
    over.cancel();
    processes.join_all().await;
    println!("{kills} kills, {more} legs ran again");
    assert!(kills >= 4, "{kills}");
    // A killed worker has its places full, and legs that wait in place beside them.
    assert!(more <= kills * (CONCURRENCY + 40), "{kills} kills, {more} legs ran again");
    wait_until("all tasks expired", TTL * 3, || async {
        let left = t.keys().await.into_iter().filter(|(key, _)| key.starts_with("t:")).count();
        if left == 0 { Ok(()) } else { Err(left.to_string()) }
    })
    .await;
    t.finish().await;
}

/// The same without kills: each leg runs exactly as often as it should.
#[tokio::test(flavor = "multi_thread")]
async fn without_kills_each_leg_of_two_hundred_tasks_runs_exactly_once() {
    let t = Fixture::new("durable_calm").await;
    let effects = Effects::default();
    let (mut workers, mut replicas) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let durable = chaos(&effects, &t.courier().await);
        workers.push(
            durable.worker().backoff(Duration::from_millis(20)).start(durable.legs()).await.expect("started"),
        );
    }
    for _ in 0..3 {
        replicas.push(Replica::start(&chaos(&effects, &t.courier().await)).await);
    }
    let site = Site(Arc::new(Mutex::new(replicas.iter().map(|replica| replica.url.clone()).collect())));
    let mut clients = tokio::task::JoinSet::new();
    for n in 0..200 {
        clients.spawn(live(site.clone(), n));
    }
    let mut legs = 0;
    for (_, end, kind) in clients.join_all().await {
        let id = end["taskId"].as_str().expect("an id").to_owned();
        let effects = effects.lock().expect("not poisoned");
        for leg in 0..if kind == "asks" { 3 } else { 1 } {
            let expected = 1 + usize::from(kind == "panics");
            assert_eq!(effects.get(&(id.clone(), leg)), Some(&expected), "leg {leg} of a task that {kind}");
            legs += 1;
        }
    }
    assert_eq!(effects.lock().expect("not poisoned").len(), legs, "and nothing else ran");
    for worker in workers {
        worker.shutdown(Duration::from_secs(5)).await;
    }
    t.finish().await;
}
