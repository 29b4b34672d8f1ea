//! Scripts: conversions, errors and limits, against a real server.

use super::support::{Pair, Raw, Wire};
use crate::memory::Memory;

/// Each is run with KEYS `{k}:1`, `{k}:2` and ARGV `a`, a binary string, `42`.
const SCRIPTS: &[&str] = &[
    "return",
    "return nil",
    "return true",
    "return false",
    "return 3.99",
    "return -3.99",
    "return 1e15",
    "return 9007199254740993",
    "return 1/0",
    "return -1/0",
    "return 0/0",
    "return 'text'",
    "return ''",
    "return {}",
    "return {1,2,nil,4}",
    "return {1,{2,{3,'x'}},false,true,1.5}",
    "return {nil,1}",
    "return {a=1,2,b=3}",
    "return {[1]='a',[2]='b',[4]='d'}",
    "return {ok='FINE'}",
    "return {ok='two\\r\\nlines'}",
    "return {err='MYCODE text'}",
    "return {err='two\\nlines here'}",
    "return {ok=1}",
    "return {err=1,2}",
    "return print",
    "return function() end",
    "return KEYS",
    "return ARGV",
    "return {#KEYS,#ARGV,KEYS[1],ARGV[2]}",
    "return ARGV[2]",
    "return #ARGV[2]",
    "return ARGV[3]+1",
    "return ARGV[9]",
    "return redis.status_reply('FINE')",
    "return redis.error_reply('MYCODE text')",
    "return redis.error_reply('-MYCODE text')",
    "return redis.error_reply('word')",
    "return redis.error_reply('-word')",
    "return redis.error_reply('')",
    "return redis.error_reply('MYCODE text').err",
    "return redis.error_reply('-MYCODE text').err",
    "return redis.error_reply('-word').err",
    "return redis.error_reply('word').err",
    "return redis.error_reply('').err",
    "return redis.error_reply('-').err",
    "return redis.error_reply(' two').err",
    "return #{pcall(function() end)}",
    "return select('#', pcall(function() return nil, nil end))",
    "return {pcall(function() error({err='A b'}) end)}",
    "return {pcall(function() error({1}) end)}",
    "return {pcall(function() error('x', 0) end)}",
    "return {xpcall(function() error('x', 0) end, function(e) return e .. '!' end)}",
    "return redis.error_reply(1,2)",
    "return redis.status_reply(1)",
    "return redis.status_reply('FINE').ok",
    "error('boom')",
    "error('MYCODE text')",
    "error({err='MYCODE text'})",
    "error(redis.error_reply('-MYCODE text'))",
    "error()",
    "error(12)",
    "return nothing.field",
    "local x = nil; return x.y",
    "return undefined_global",
    "created_global = 1",
    "KEYS = 1",
    "redis = 1",
    "_G.x = 1",
    "rawset(_G, 'x', 1)",
    "function f() end",
    "local function f(n) if n == 0 then return 1 end return f(n-1) end return f(1000)",
    "return os.time()",
    "return io",
    "return require('x')",
    "return dofile('x')",
    "return loadfile",
    "return print('x')",
    "return type(_G)",
    "return type(redis.call)",
    "return pcall(error, 'x')",
    "return {pcall(error, 'x')}",
    "return select(2, pcall(redis.call, 'GET', KEYS[2])).err",
    "return redis.call('SET', KEYS[1], ARGV[2])",
    "return redis.call('SET', KEYS[1], 'v').ok",
    "return redis.call('GET', KEYS[1])",
    "return redis.call('get', KEYS[1])",
    "return redis.call('GET', 'missing')",
    "return redis.call('GET', 'missing') == false",
    "return {redis.call('GET', 'missing'), 1}",
    "return redis.call('RPUSH', KEYS[2], ARGV[2], 1, 2.5, 1e10, 0.1, -7, 1e17, 123456789012345678)",
    "return redis.call('LRANGE', KEYS[2], 0, -1)",
    "return redis.call('LPOP', 'missing', 2)",
    "return redis.call('LPOP', KEYS[2], 1)[1]",
    "return redis.call('LRANGE', KEYS[2], 0.0, -1)",
    "return redis.call('LRANGE', KEYS[2], 0.5, -1)",
    "return redis.call('GET', KEYS[2])",
    "return redis.pcall('GET', KEYS[2])",
    "return redis.pcall('GET', KEYS[2]).err",
    "local r = redis.pcall('GET', KEYS[2]) return {r.err, r[1]}",
    "return {redis.pcall('GET', KEYS[2]), 5}",
    "local ok, e = pcall(redis.call, 'GET', KEYS[2]) return {tostring(ok), type(e), e.err}",
    "local ok, e = pcall(function() return redis.call('GET', KEYS[2]) end) return {tostring(ok), type(e), e.err}",
    "local ok, e = pcall(redis.call, 'GET', KEYS[2]) error(e)",
    "return redis.call('NOSUCH')",
    "return redis.pcall('NOSUCH')",
    "return redis.call()",
    "return redis.pcall()",
    "return redis.call('GET')",
    "return redis.call('GET', 'a', 'b')",
    "return redis.call('SET', KEYS[1], {})",
    "return redis.call('SET', KEYS[1], nil)",
    "return redis.call('SET', KEYS[1], true)",
    "return redis.call('SUBSCRIBE', 'x')",
    "return redis.call('EVAL', 'return 1', 0)",
    "return redis.call('HELLO', 3)",
    "return redis.call('DEL', KEYS[2])",
    "return redis.call('HSET', KEYS[2], 'f', 1.0, 'g', 'x')",
    "return redis.call('HGETALL', KEYS[2])",
    "return redis.call('HMGET', KEYS[2], 'f', 'nothing', 'g')",
    "return #redis.call('HMGET', KEYS[2], 'f', 'nothing', 'g')",
    "return redis.call('HGET', KEYS[2], 'f') + 1",
    "return redis.call('DEL', KEYS[2])",
    "return redis.call('ZADD', KEYS[2], 1.5, 'a', 0.1, 'b', 3, 'c', 1e20, 'd', '-inf', 'e')",
    "return redis.call('ZSCORE', KEYS[2], 'a')",
    "return type(redis.call('ZSCORE', KEYS[2], 'a'))",
    "return redis.call('ZSCORE', KEYS[2], 'b')",
    "return redis.call('ZSCORE', KEYS[2], 'nothing')",
    "return redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')",
    "return redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', 2, 'WITHSCORES', 'LIMIT', 0, 2)",
    "return redis.call('TYPE', KEYS[2])",
    "return redis.call('TYPE', KEYS[2]).ok",
    "return redis.call('PING')",
    "return redis.call('ECHO', 'x')",
    "return redis.call('PUBLISH', 'nobody', 'x')",
    "return #redis.call('TIME')",
    "return type(redis.call('TIME')[1])",
    "return redis.call('SELECT', 0)",
    "return redis.call('EXISTS', KEYS[1], KEYS[2])",
    "return redis.sha1hex('')",
    "return redis.sha1hex('abc')",
    "return redis.sha1hex(5)",
    "return redis.sha1hex()",
    "redis.log(redis.LOG_WARNING, 'x') return redis.LOG_NOTICE",
    "return tostring(1e14)",
    "return tostring(123456789012345)",
    "return 1e13 .. ''",
    "return string.format('%.0f', 1e15)",
    "return tostring(0.1)",
    "return tonumber('0x10')",
    "return tonumber('12abc')",
    "return {tonumber('  12  '), math.floor(-1.5), math.max(1,2,3)}",
    "return string.rep('x', 10)",
    "return {string.find('1 2 body', '^(%d+) (%d+) ')}",
    "return {string.match('a:b:c', '^(.*):(.*)$')}",
    "return ('%q'):format('a\\nb')",
    "return string.sub(ARGV[2], 2, 4)",
    "return {string.byte(ARGV[2], 1, -1)}",
    "return table.concat({1,2,3}, ',')",
    "local t = {5,3,9} table.sort(t) return t",
    "local t = {1,2,3} table.remove(t, 1) table.insert(t, 'x') return t",
    "local t = {} for i=1,5000 do t[i] = i end return {select('#', unpack(t)), #t}",
    "local t = setmetatable({}, {__index=function(_, i) if i < 3 then return i end end}) return t",
    "return _VERSION",
    "redis.call('SET', KEYS[1], 'kept') redis.call('NOSUCH')",
    "return redis.call('GET', KEYS[1])",
    "for i = 1, 3 do redis.pcall('LPUSH', KEYS[1], 'x') end return redis.call('GET', KEYS[1])",
    "syntax error here",
    "return ((",
    "goto x",
];

async fn compare(resp: u8) {
    let Some(mut pair) = Pair::start(resp).await else { return };
    let mut different = Vec::new();
    for script in SCRIPTS {
        let request: [&[u8]; 8] =
            [b"EVAL", script.as_bytes(), b"2", b"{k}:1", b"{k}:2", b"a", b"\0\xff\r\n\x80z", b"42"];
        different.extend(pair.differ(&request).await);
    }
    assert!(different.is_empty(), "{}", different.concat());
}

#[tokio::test]
async fn scripts_convert_and_fail_as_on_the_server_in_resp2() {
    compare(2).await;
}

#[tokio::test]
async fn scripts_convert_and_fail_as_on_the_server_in_resp3() {
    compare(3).await;
}

#[tokio::test]
async fn an_endless_script_ends_with_an_error_even_when_it_catches_errors() {
    let mut raw = Raw::new(Memory::private().connect());
    for script in ["while true do end", "while true do pcall(function() while true do end end) end"] {
        assert_eq!(raw.call(&["EVAL", script, "0"]).await, Wire::Error("ERR".into()));
    }
    assert_eq!(raw.call(&["EVAL", "return 1", "0"]).await.int(), 1);
}

#[tokio::test]
async fn a_reply_nested_without_end_is_cut() {
    let mut raw = Raw::new(Memory::private().connect());
    let mut reply = raw.call(&["EVAL", "local t = {} t[1] = t return t", "0"]).await;
    while let Wire::Group(_, mut items) = reply {
        reply = items.remove(0);
    }
    assert_eq!(reply, Wire::Error("ERR".into()));
}

#[tokio::test]
async fn scripts_share_nothing_but_the_store() {
    let memory = Memory::private();
    let mut raw = Raw::new(memory.connect());
    raw.call(&["EVAL", "local secret = 1 string.dump = nil return secret", "1", "key", "arg"]).await;
    assert_eq!(raw.call(&["EVAL", "return {#KEYS, #ARGV}", "0"]).await.items()[0].int(), 0);
    assert_eq!(raw.call(&["EVAL", "return secret", "0"]).await, Wire::Error("ERR".into()));
}
