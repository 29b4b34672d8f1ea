//! Whether a content fits the schema that was asked for.

use serde_json::Value;

use super::{Content, Request, RequestKind};
use crate::{Error, Result};

/// Refuses a request whose schema can never be checked: the worker hears of it, not the user.
pub(super) fn check_request(request: &Request) -> Result<()> {
    match request.requested_schema() {
        None => Ok(()),
        Some(Value::Object(_)) => {
            compile(request).map(|_| ()).map_err(|why| Error::invalid("requested schema", why))
        }
        Some(_) => Err(Error::invalid("requested schema", "is no JSON object")),
    }
}

/// Whether an acceptance may carry this content; why not.
pub(super) fn check_content(request: &Request, content: &Content) -> Result<(), String> {
    let Ok(value) = content.parse::<Value>() else { return Err("it is no JSON".into()) };
    if request.is_url() || request.requested_schema().is_none() && request.kind == RequestKind::Elicitation {
        return Ok(());
    }
    if !value.is_object() {
        return Err("it is no JSON object".into());
    }
    fits(request, &value)
}

#[cfg(feature = "schema")]
fn compile(request: &Request) -> Result<Option<jsonschema::Validator>, String> {
    let Some(schema) = request.requested_schema() else { return Ok(None) };
    jsonschema::options()
        .should_validate_formats(true)
        .build(schema)
        .map(Some)
        .map_err(|e| shortened(&e.to_string()))
}

#[cfg(not(feature = "schema"))]
fn compile(_request: &Request) -> Result<Option<()>, String> {
    Ok(None)
}

#[cfg(feature = "schema")]
fn fits(request: &Request, value: &Value) -> Result<(), String> {
    let Some(validator) = compile(request)? else { return Ok(()) };
    match validator.iter_errors(value).next() {
        None => Ok(()),
        // Masked: what a user typed does not belong into errors and logs.
        Some(e) => Err(shortened(&format!("{} at {:?}", e.masked(), e.instance_path().to_string()))),
    }
}

#[cfg(not(feature = "schema"))]
fn fits(_request: &Request, _value: &Value) -> Result<(), String> {
    Ok(())
}

#[cfg(feature = "schema")]
fn shortened(why: &str) -> String {
    why.chars().take(300).collect()
}
