//! Percent-encoding (RFC 3986) of path segments, of query values, and of header values that allow
//! ASCII only.
//!
//! Decoding is strict: an invalid encoding is an error, so that no object is looked up under a name
//! that nobody wrote.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// What RFC 3986 (2.3) does not call unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Text with all but unreserved characters encoded.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// What encoded text stands for; none: a `%` without two digits behind it, or bytes that are not
/// UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let is_code = |rest: &str| {
        let digits = rest.as_bytes().first_chunk::<2>();
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    // The library takes what is no code as it stands.
    let is_encoded = text.split('%').skip(1).all(is_code);
    let decoded = is_encoded.then(|| percent_decode_str(text).decode_utf8().ok()).flatten()?;
    Some(decoded.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_text_is_decoded_and_nothing_else() {
        assert_eq!(encode("a/b ü"), "a%2Fb%20%C3%BC");
        for text in ["", "web-1.a_b~", "a/b ü", "50%off", "%41", "東京"] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
        }
        assert_eq!(decode("%c3%bc").as_deref(), Some("ü"), "in small letters too");
        for bad in ["%", "%2", "%zz", "%é", "%41%", "%%41", "%ff"] {
            assert_eq!(decode(bad), None);
        }
    }
}
