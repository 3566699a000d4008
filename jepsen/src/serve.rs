//! A list of stored runs for a browser, and their files.
//!
//! Answers GET requests of one page at a time; reads below the store directory and nowhere else, and changes nothing.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{html, report::note};

/// Patience with one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest request line.
const LINE_BYTES_MAX: u64 = 8_192;
/// Runs in the list, the newest first.
const RUNS_MAX: usize = 1_000;

/// Serves until the process ends.
pub(crate) fn serve(store: &Path, address: SocketAddr) -> Result<()> {
    let root = store
        .canonicalize()
        .with_context(|| format!("there are no runs in {}: run a test first", store.display()))?;
    let listener = TcpListener::bind(address)
        .with_context(|| format!("cannot listen on {address}: give another --address"))?;
    note(&format!("runs in {} are at http://{}/", root.display(), listener.local_addr()?));
    for socket in listener.incoming() {
        // A browser that went away concerns that browser alone.
        let Ok(socket) = socket else { continue };
        if let Err(error) = answer(&root, &socket) {
            note(&format!("a request failed: {error:#}"));
        }
    }
    Ok(())
}

fn answer(root: &Path, mut socket: &TcpStream) -> Result<()> {
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(socket.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    let (status, kind, body) = respond(root, &line);
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    socket.write_all(head.as_bytes())?;
    socket.write_all(&body)?;
    Ok(())
}

type Response = (&'static str, &'static str, Vec<u8>);

/// The answer to a request line.
fn respond(root: &Path, line: &str) -> Response {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let mut words = line.split_whitespace();
    let (Some("GET"), Some(target)) = (words.next(), words.next()) else {
        return ("405 Method Not Allowed", PLAIN, b"only GET\n".to_vec());
    };
    let path = target.split(['?', '#']).next().unwrap_or_default();
    if path == "/" {
        return ("200 OK", "text/html; charset=utf-8", index(root).into_bytes());
    }
    let not_found = ("404 Not Found", PLAIN, b"there is no such file\n".to_vec());
    let Some(file) = below(root, path) else { return not_found };
    if file.is_dir() {
        return ("200 OK", "text/html; charset=utf-8", listing(&file, path).into_bytes());
    }
    let Ok(content) = fs::read(&file) else { return not_found };
    let kind = match file.extension().and_then(|ending| ending.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json") => "application/json",
        Some("img") => "application/octet-stream",
        Some(_) | None => PLAIN,
    };
    ("200 OK", kind, content)
}

/// The file of a path, if it is below the root and stays there when links are followed.
fn below(root: &Path, path: &str) -> Option<PathBuf> {
    let relative = Path::new(path.trim_start_matches('/'));
    let plain = |part| matches!(part, Component::Normal(_));
    if !relative.components().all(plain) {
        return None;
    }
    let file = root.join(relative).canonicalize().ok()?;
    file.starts_with(root).then_some(file)
}

struct Run {
    name: String,
    time: String,
    valid: Option<Value>,
}

/// Every `<name>/<time>` with a `test.json`, the newest first.
fn runs(root: &Path) -> Vec<Run> {
    let mut runs = Vec::new();
    let directories = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.is_dir() && !path.is_symlink())
            .collect()
    };
    let name = |path: &Path| {
        path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
    };
    for group in directories(root) {
        for run in directories(&group) {
            if run.join("test.json").is_file() {
                let results = fs::read_to_string(run.join("results.json")).ok();
                let results: Option<Value> =
                    results.and_then(|text| serde_json::from_str(&text).ok());
                let valid = results.map(|results| results["valid"].clone());
                runs.push(Run { name: name(&group), time: name(&run), valid });
            }
        }
    }
    runs.sort_by(|a, b| (&b.time, &b.name).cmp(&(&a.time, &a.name)));
    runs.truncate(RUNS_MAX);
    runs
}

fn index(root: &Path) -> String {
    let mut rows = String::new();
    for run in runs(root) {
        let (colour, word) = match &run.valid {
            Some(Value::Bool(true)) => ("#1d8348", "ok"),
            Some(Value::Bool(false)) => ("#b3261e", "FAILED"),
            Some(_) => ("#9a6700", "unknown"),
            None => ("#5b6675", "not judged"),
        };
        let path = format!("/{}/{}", html::escape(&run.name), html::escape(&run.time));
        writeln!(
            rows,
            "<tr><td style=\"color:{colour};font-weight:600\">{word}</td><td>{}</td><td>{}</td><td><a \
             href=\"{path}/{}\">report</a> · <a href=\"{path}/results.json\">results</a> · <a \
             href=\"{path}/jepsen.log\">log</a> · <a href=\"{path}\">files</a></td></tr>",
            html::escape(&run.time),
            html::escape(&run.name),
            html::FILE
        )
        .expect("writing to a string cannot fail");
    }
    page(
        "Runs",
        &format!(
            "<table><tr><th>verdict</th><th>time</th><th>run</th><th></th></tr>\n{rows}</table>"
        ),
    )
}

fn listing(directory: &Path, path: &str) -> String {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let path = html::escape(path.trim_end_matches('/'));
    let mut items = String::new();
    for name in names {
        let name = html::escape(&name);
        writeln!(items, "<li><a href=\"{path}/{name}\">{name}</a></li>")
            .expect("writing to a string cannot fail");
    }
    page(&path, &format!("<ul>{items}</ul>"))
}

fn page(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>body{{font:14px/1.5 \
         system-ui,sans-serif;margin:20px auto;max-width:1100px;padding:0 16px;color:#1c2430}}table{{border-collapse:collapse;\
         width:100%}}td,th{{text-align:left;padding:4px 12px 4px 0;border-bottom:1px solid #dfe3e8}}</style></head><body>\
         <h1>{title}</h1>\n{body}\n</body></html>\n"
    )
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn store() -> tempfile::TempDir {
        let store = tempfile::tempdir().unwrap();
        for (run, valid) in [("register/20260101T000000", "true"), ("<b>/20260102T000000", "false")]
        {
            let run = store.path().join(run);
            fs::create_dir_all(&run).unwrap();
            fs::write(run.join("test.json"), "{}").unwrap();
            fs::write(run.join("results.json"), format!("{{\"valid\": {valid}}}")).unwrap();
        }
        store
    }

    #[test]
    fn runs_are_listed_newest_first() {
        let store = store();
        let (status, _, body) = respond(store.path(), "GET / HTTP/1.1\r\n");
        let body = String::from_utf8(body).unwrap();
        assert_eq!(status, "200 OK");
        assert!(body.find("FAILED").unwrap() < body.find(">ok<").unwrap(), "{body}");
        assert!(body.contains("&lt;b&gt;") && !body.contains("<b>"));
    }

    #[test]
    fn nothing_outside_the_store_is_served() {
        let store = store();
        let root = store.path().canonicalize().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink(outside.path(), root.join("link")).unwrap();
        let status = |line: &str| respond(&root, line).0;
        assert_eq!(status("GET /register/20260101T000000/results.json HTTP/1.1"), "200 OK");
        assert_eq!(status("GET /register HTTP/1.1"), "200 OK");
        for bad in ["/../secret", "/link/secret", "/none", "//etc/passwd", "/register/../../x"] {
            assert_eq!(status(&format!("GET {bad} HTTP/1.1")), "404 Not Found", "{bad}");
        }
        assert_eq!(status("POST / HTTP/1.1"), "405 Method Not Allowed");
        assert_eq!(status(""), "405 Method Not Allowed");
    }

    #[test]
    fn a_browser_gets_a_whole_answer() {
        let store = store();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let root = store.path().canonicalize().unwrap();
        let server = std::thread::spawn(move || answer(&root, &listener.accept().unwrap().0));
        let mut browser = TcpStream::connect(address).unwrap();
        browser.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        browser.read_to_string(&mut text).unwrap();
        server.join().unwrap().unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("</html>\n"), "{text}");
    }
}
