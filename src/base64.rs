//! Base64 with the usual letters and padding (RFC 4648), for bytes in JSON.

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text for these bytes.
pub(crate) fn encode(data: &[u8]) -> String {
    let mut text = String::with_capacity(data.len().div_ceil(3) * 4);
    for chunk in data.chunks(3) {
        let byte = |position: usize| u32::from(chunk.get(position).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for position in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * position) & 63) as usize];
            text.push(if position <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// The bytes of a text; none: it is no such text.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(4) {
        return None;
    }
    let letters = text.trim_end_matches('=');
    let padding = text.len() - letters.len();
    if padding > 2 {
        return None;
    }
    let mut data = Vec::with_capacity(bytes.len() / 4 * 3);
    let (mut bits, mut held) = (0u32, 0u32);
    for letter in letters.bytes() {
        bits = bits << 6 | value(letter)?;
        held += 6;
        if held >= 8 {
            held -= 8;
            data.push((bits >> held & 0xff) as u8);
            bits &= (1 << held) - 1;
        }
    }
    // What is left over are zeros, as the encoder leaves them.
    (bits == 0).then_some(data)
}

fn value(letter: u8) -> Option<u32> {
    let value = match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_usual_one() {
        for (data, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(encode(data.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(data.as_bytes()));
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decode(&encode(&all)), Some(all));
    }

    #[test]
    fn what_no_encoder_makes_is_refused() {
        for text in ["Zg", "Zg=", "Z===", "Zg==Zg==", "Zm9v!A==", "Zh==", "====", "Zm 9v"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
