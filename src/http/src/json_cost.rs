//! Counts how much memory a JSON body will take once it is parsed, before it is parsed.
//!
//! The smallest object takes two bytes in the body and a map node in memory, so the length of a
//! body bounds nothing: 24 MiB of `{"":0},` took 2.75 GB.

/// A map's first node in `serde_json::Value`: eleven keys of 24 bytes and values of 32, rounded up
/// as the allocator does.
const OBJECT_BYTES: usize = 640;
/// Another key and value, or element: its place in a vector that doubles, or in a node that is half
/// full.
const VALUE_BYTES: usize = 64;

/// Bytes that a body takes as a `serde_json::Value`, about, beside its own. What is no JSON costs
/// what it looks like.
pub(super) fn of(body: &[u8]) -> usize {
    let (mut objects, mut values) = (0usize, 0usize);
    let mut within_text = false;
    let mut bytes = body.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => within_text = !within_text,
            b'\\' if within_text => drop(bytes.next()),
            b'{' if !within_text => objects += 1,
            b'[' | b',' | b':' if !within_text => values += 1,
            _ => {}
        }
    }
    objects.saturating_mul(OBJECT_BYTES).saturating_add(values.saturating_mul(VALUE_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_values_cost_what_they_become() {
        assert_eq!(of(b"{\"\":0}"), OBJECT_BYTES + VALUE_BYTES);
        assert_eq!(of(b"[1,2,[]]"), 4 * VALUE_BYTES);
        assert_eq!(of(b""), 0);
        // 24 MiB of the smallest objects are gigabytes.
        let body = b"{\"\":0},".repeat((24 << 20) / 7);
        assert!((2 << 30..4 << 30).contains(&of(&body)), "{}", of(&body));
    }

    #[test]
    fn texts_cost_their_bytes_alone() {
        let text = format!("\"{}\"", r#"{[,:\"\\"#.repeat(1_000));
        assert_eq!(of(text.as_bytes()), 0);
        assert_eq!(of(b"\"a\\\\\",1"), VALUE_BYTES, "the text ends behind an escaped backslash");
        assert_eq!(of(b"\"{{{{"), 0, "a text without an end");
    }
}
