//! The register workload on etcd, by its JSON gateway: a register is a key, its version the revision of its last change.
//!
//! Owns how it is asked and what an answer means. A read is a linearizable range, a compare-and-set a transaction on the
//! revision. Whatever is not an answer leaves a write open: etcd may have done it.

use serde_json::{Value, json};

use super::answer::Completion;
use super::register::{Action, Content};
use crate::client::{HttpClient, Reply};

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Performs one request.
pub(super) fn perform(
    client: &HttpClient,
    key: u64,
    action: Action,
) -> Result<Content, Completion> {
    let key = encode(format!("r{key}").as_bytes());
    match action {
        Action::Read => read(&client.post("/v3/kv/range", &json!({"key": key}))),
        Action::Write(value) => {
            let body = json!({"key": key, "value": encode(value.to_string().as_bytes())});
            let answer = written(&client.post("/v3/kv/put", &body))?;
            content_at(value, &answer)
        }
        Action::Cas(old, value) => {
            let compare = json!({
                "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": old.version.to_string()
            });
            let put = json!({"key": key, "value": encode(value.to_string().as_bytes())});
            let body = json!({"compare": [compare], "success": [{"request_put": put}]});
            let answer = written(&client.post("/v3/kv/txn", &body))?;
            // The gateway leaves a false out.
            if answer["succeeded"] != true {
                return Err(Completion::fail("the revision is another"));
            }
            content_at(value, &answer)
        }
    }
}

fn content_at(value: u64, answer: &Value) -> Result<Content, Completion> {
    match number(&answer["header"]["revision"]) {
        Some(version) => Ok(Content { value: Some(value), version }),
        None => Err(Completion::info(&format!("unexpected answer: {answer}"))),
    }
}

fn read(reply: &Reply) -> Result<Content, Completion> {
    let body = match reply {
        Reply::Answer { status: 200, body, .. } => body,
        Reply::Answer { status, body, .. } => {
            return Err(Completion::fail(&format!("{status}: {body}")));
        }
        Reply::NotSent(error) | Reply::Lost(error) => return Err(Completion::fail(error)),
    };
    let unexpected = || Completion::fail(&format!("unexpected answer: {body}"));
    let answer: Value = serde_json::from_str(body).map_err(|_| unexpected())?;
    if answer["header"]["revision"].is_null() {
        return Err(unexpected());
    }
    let Some(pair) = answer["kvs"].as_array().and_then(|pairs| pairs.first()) else {
        return Ok(Content::default());
    };
    let value = pair["value"].as_str().and_then(decode);
    let value = value.and_then(|bytes| String::from_utf8(bytes).ok()?.parse().ok());
    match (value, number(&pair["mod_revision"])) {
        (Some(value), Some(version)) => Ok(Content { value: Some(value), version }),
        _ => Err(unexpected()),
    }
}

fn written(reply: &Reply) -> Result<Value, Completion> {
    match reply {
        Reply::Answer { status: 200, body, .. } => serde_json::from_str(body)
            .map_err(|error| Completion::info(&format!("unexpected answer: {error}"))),
        Reply::Answer { status: status @ 400..500, body, .. } => {
            Err(Completion::fail(&format!("{status}: {body}")))
        }
        Reply::Answer { status, body, .. } => Err(Completion::info(&format!("{status}: {body}"))),
        Reply::NotSent(error) => Err(Completion::fail(error)),
        Reply::Lost(error) => Err(Completion::info(error)),
    }
}

/// The gateway writes 64-bit numbers as texts.
fn number(value: &Value) -> Option<u64> {
    value.as_str()?.parse().ok()
}

/// Base64 with padding.
fn encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte));
        let group = group << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = usize::try_from(group >> (18 - 6 * place) & 63).unwrap_or(0);
            text.push(if place <= chunk.len() { char::from(ALPHABET[digit]) } else { '=' });
        }
    }
    text
}

/// The bytes of a base64 text; `None` if it is none.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let (mut group, mut bits) = (0_u32, 0);
    for digit in text.trim_end_matches('=').bytes() {
        let place = ALPHABET.iter().position(|other| *other == digit)?;
        group = (group << 6 | u32::try_from(place).ok()?) & 0xff_ffff;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push(u8::try_from(group >> bits & 0xff).ok()?);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Kind;

    fn answer(status: u16, body: &Value) -> Reply {
        Reply::Answer { status, index: None, body: body.to_string() }
    }

    #[test]
    fn base64_is_that_of_the_rfc() {
        let examples =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (plain, coded) in examples {
            assert_eq!(encode(plain.as_bytes()), coded);
            assert_eq!(decode(coded).as_deref(), Some(plain.as_bytes()));
        }
        assert_eq!(decode("Z g"), None);
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
    }

    #[test]
    fn answers_mean_what_etcd_says() {
        let header = json!({"revision": "7"});
        let pair = json!({"value": encode(b"41"), "mod_revision": "5"});
        let found = read(&answer(200, &json!({"header": header, "kvs": [pair]})));
        assert_eq!(found, Ok(Content { value: Some(41), version: 5 }));
        assert_eq!(read(&answer(200, &json!({"header": header}))), Ok(Content::default()));
        assert_eq!(read(&answer(200, &json!({}))).map_err(|end| end.kind), Err(Kind::Fail));
        let kind = |reply: &Reply| written(reply).map_err(|end| end.kind);
        assert_eq!(kind(&answer(503, &json!({"error": "no leader"}))), Err(Kind::Info));
        assert_eq!(kind(&answer(400, &json!({}))), Err(Kind::Fail));
        assert_eq!(kind(&Reply::Lost(String::new())), Err(Kind::Info));
        assert_eq!(kind(&Reply::NotSent(String::new())), Err(Kind::Fail));
        let content = content_at(3, &json!({"header": header}));
        assert_eq!(content, Ok(Content { value: Some(3), version: 7 }));
    }
}
