//! `lua/touch.lua`: something to wait for behind a push whose id was known.

use super::Invocation;
use super::reply::Fields;
use super::source::script;
use crate::Result;
use crate::connection::Commands;

script!(pub(super) static TOUCH = "touch", uses [],
    keys [] each ["d"],
    args [] each []);

/// Whether one of the marks was still there.
pub(crate) async fn touch(cmd: &Commands, marks: &[String]) -> Result<bool> {
    let mut call = Invocation::new(&TOUCH);
    for mark in marks {
        call.key(mark);
    }
    Ok(Fields::of(&TOUCH, cmd.run(&call).await?)?.count()? == 1)
}
