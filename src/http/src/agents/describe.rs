//! What a file looks like to clients of Nomad: mode, time and content type in Go's forms. Reads
//! nothing itself.

use std::{
    fs::Metadata,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

use calendar::DateTime;
use serde_json::{Value, json};

/// Bytes at the start of a file by which its content type is told.
pub(super) const SNIFFED_BYTES: usize = 512;

const UNKNOWN: &str = "application/octet-stream";
const TEXT: &str = "text/plain; charset=utf-8";

/// The beginnings of files whose type is told by them.
const MAGIC: [(&[u8], &str); 9] = [
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"\x1f\x8b\x08", "application/x-gzip"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x00asm", "application/wasm"),
    (b"<?xml", "text/xml; charset=utf-8"),
];

/// A file of this name; `start` is its beginning if it is a regular file that can be read.
pub(super) fn file(name: &str, metadata: &Metadata, start: Option<&[u8]>) -> Value {
    json!({
        "Name": name,
        "IsDir": metadata.is_dir(),
        "Size": metadata.len(),
        "FileMode": mode(metadata),
        "ModTime": time(metadata.mtime(), metadata.mtime_nsec()),
        "ContentType": content_type(name, start),
    })
}

/// RFC 3339 with as much of a fraction as there is.
fn time(seconds: i64, nanoseconds: i64) -> String {
    let whole = DateTime::from_unix(seconds).rfc3339();
    if nanoseconds == 0 {
        return whole;
    }
    let fraction = format!("{nanoseconds:09}");
    format!("{}.{}Z", whole.trim_end_matches('Z'), fraction.trim_end_matches('0'))
}

/// As Go prints a mode: letters for what is not a plain file, then the permissions.
fn mode(metadata: &Metadata) -> String {
    let (mode, kind) = (metadata.mode(), metadata.file_type());
    let letters = [
        (kind.is_dir(), "d"),
        (kind.is_symlink(), "L"),
        (kind.is_block_device() || kind.is_char_device(), "D"),
        (kind.is_fifo(), "p"),
        (kind.is_socket(), "S"),
        (mode & 0o4000 != 0, "u"),
        (mode & 0o2000 != 0, "g"),
        (kind.is_char_device(), "c"),
        (mode & 0o1000 != 0, "t"),
    ];
    let mut text: String =
        letters.into_iter().filter_map(|(is, letter)| is.then_some(letter)).collect();
    if text.is_empty() {
        text.push('-');
    }
    let bits = "rwxrwxrwx".chars().zip((0..9).rev());
    text.extend(bits.map(|(letter, bit)| if mode & 1 << bit == 0 { '-' } else { letter }));
    text
}

fn content_type(name: &str, start: Option<&[u8]>) -> &'static str {
    if Path::new(name).extension().is_some_and(|extension| extension == "json") {
        return "application/json";
    }
    let Some(start) = start else { return UNKNOWN };
    if let Some((_, found)) = MAGIC.iter().find(|(magic, _)| start.starts_with(magic)) {
        return found;
    }
    let text = start.trim_ascii_start();
    let is_html = ["<!doctype html", "<html"].iter().any(|tag| {
        text.get(..tag.len()).is_some_and(|head| head.eq_ignore_ascii_case(tag.as_bytes()))
    });
    let is_binary = |byte: &u8| matches!(byte, 0..=0x08 | 0x0b | 0x0e..=0x1a | 0x1c..=0x1f);
    match (is_html, start.iter().any(is_binary)) {
        (true, _) => "text/html; charset=utf-8",
        (false, true) => UNKNOWN,
        (false, false) => TEXT,
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn times_have_the_fraction_there_is() {
        assert_eq!(time(951_782_400, 0), "2000-02-29T00:00:00Z");
        assert_eq!(time(951_782_400, 120_000_000), "2000-02-29T00:00:00.12Z");
        assert_eq!(time(1, 1), "1970-01-01T00:00:01.000000001Z");
    }

    #[test]
    fn modes_are_those_of_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        fs::write(&path, "").unwrap();
        for (bits, expected) in
            [(0o640, "-rw-r-----"), (0o4755, "urwxr-xr-x"), (0o7777, "ugtrwxrwxrwx")]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
            assert_eq!(mode(&fs::metadata(&path).unwrap()), expected);
        }
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        assert_eq!(mode(&fs::metadata(directory.path()).unwrap()), "dtrwxrwxrwx");
        let link = directory.path().join("l");
        std::os::unix::fs::symlink("x", &link).unwrap();
        assert_eq!(mode(&fs::symlink_metadata(link).unwrap()), "Lrwxrwxrwx");
    }

    #[test]
    fn a_content_type_is_told_by_the_name_or_the_first_bytes() {
        for (name, start, expected) in [
            ("a.json", Some(&b"x"[..]), "application/json"),
            ("log", Some(b""), TEXT),
            ("log", Some(b"line 1\n\x1b[1mbold"), TEXT),
            ("log", Some("ä".as_bytes()), TEXT),
            ("binary", Some(b"\x7fELF\x02\x01"), UNKNOWN),
            ("page", Some(b"  <!DOCTYPE HTML><p>"), "text/html; charset=utf-8"),
            ("x", Some(b"<?xml version"), "text/xml; charset=utf-8"),
            ("x", Some(b"\x1f\x8b\x08\x00"), "application/x-gzip"),
            ("directory", None, UNKNOWN),
        ] {
            assert_eq!(content_type(name, start), expected, "{name} {start:?}");
        }
    }
}
