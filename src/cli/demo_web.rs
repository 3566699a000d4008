//! `quorate demo-web`: the web server of `examples/web.hcl`, so that the example needs nothing
//! installed.
//!
//! Owns one listening socket. Must never serve a file or read a body: every request gets the same
//! page about this process. Bounds: connections at once, bytes of a request's head, seconds to send
//! it.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;

use super::context::{Context, Exit, Outcome};
use super::{signal, time};

const CONNECTIONS_MAX: usize = 64;
const HEAD_BYTES_MAX: usize = 8 << 10;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stop waits for requests under way.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(3);

/// Flags of `demo-web`.
#[derive(Debug, Args)]
pub(crate) struct DemoWebArgs {
    #[arg(
        long,
        help = "Port to listen on without NOMAD_ADDR_http and NOMAD_PORT_http; 0 lets the system choose"
    )]
    port: Option<u16>,
}

/// What the page says about this process.
#[derive(Debug)]
struct Identity {
    host: String,
    allocation: String,
    name: String,
}

#[derive(Debug)]
struct Server {
    identity: Identity,
    requests: AtomicU64,
    connections: AtomicUsize,
    stopping: AtomicBool,
}

pub(crate) fn run(context: &Context, arguments: &DemoWebArgs) -> Outcome {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let address = listen_address(&variable, arguments.port)?;
    let stop = signal::stop_requests()?;
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let local = listener.local_addr()?;
    let server = Arc::new(Server::new(&variable));
    context.line(format!("listening on http://{local}"))?;
    let waiter = Arc::clone(&server);
    thread::spawn(move || {
        // A closed channel means that no signal can come any more.
        if stop.recv().is_ok() {
            waiter.stop(local);
        }
    });
    server.serve(context, &listener);
    context.line(format!("stopped after {} requests", server.requests.load(Ordering::Relaxed)))?;
    Ok(Exit::Success)
}

fn listen_address(
    variable: &dyn Fn(&str) -> Option<String>,
    port: Option<u16>,
) -> anyhow::Result<SocketAddr> {
    if let Some(text) = variable("NOMAD_ADDR_http") {
        return text
            .parse()
            .with_context(|| format!("NOMAD_ADDR_http is {text}; allowed: IP:port"));
    }
    let port = match variable("NOMAD_PORT_http") {
        Some(text) => {
            text.parse().with_context(|| format!("NOMAD_PORT_http is {text}; allowed: a port"))?
        }
        None => match port {
            Some(port) => port,
            None => {
                bail!("which port? give --port, or run it as a task with a port labelled \"http\"")
            }
        },
    };
    Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))
}

impl Server {
    fn new(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let or_none = |name| variable(name).unwrap_or_else(|| "none".to_owned());
        let identity = Identity {
            host,
            allocation: or_none("NOMAD_ALLOC_ID"),
            name: or_none("NOMAD_ALLOC_NAME"),
        };
        Self {
            identity,
            requests: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            stopping: AtomicBool::new(false),
        }
    }

    /// Ends [`Server::serve`]: accepting is blocked in the system, so a connection of our own wakes
    /// it.
    fn stop(&self, mut local: SocketAddr) {
        self.stopping.store(true, Ordering::SeqCst);
        if local.ip().is_unspecified() {
            local.set_ip(IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        TcpStream::connect_timeout(&local, REQUEST_TIMEOUT).ok();
    }

    fn serve(self: &Arc<Self>, context: &Context, listener: &TcpListener) {
        for stream in listener.incoming() {
            if self.stopping.load(Ordering::SeqCst) {
                break;
            }
            let Ok(stream) = stream else {
                // Out of descriptors, or a client that left: nothing to answer.
                thread::sleep(Duration::from_millis(20));
                continue;
            };
            if self.connections.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
                respond(&stream, "503 Service Unavailable", "text/plain", "too many connections\n")
                    .ok();
                self.connections.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            let server = Arc::clone(self);
            let context = context.clone();
            thread::spawn(move || {
                server.answer(&context, stream).ok();
                server.connections.fetch_sub(1, Ordering::SeqCst);
            });
        }
        let mut waited = Duration::ZERO;
        let step = Duration::from_millis(10);
        while self.connections.load(Ordering::SeqCst) > 0 && waited < DRAIN_TIMEOUT {
            thread::sleep(step);
            waited += step;
        }
    }

    fn answer(&self, context: &Context, mut stream: TcpStream) -> io::Result<()> {
        stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
        stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
        let head = read_head(&mut stream)?;
        let Some(request) = Request::parse(&head) else {
            return respond(&stream, "400 Bad Request", "text/plain", "bad request\n");
        };
        let count = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let now = time::timestamp(context.now_nanoseconds());
        let from = stream.peer_addr().map(|peer| peer.to_string()).unwrap_or_default();
        let Request { method, path, html } = request;
        context.output.line(format!("{now} {from} {method} {path:?} request {count}"))?;
        if method != "GET" {
            return respond(&stream, "405 Method Not Allowed", "text/plain", "GET only\n");
        }
        let facts = self.facts(&now, count);
        if html {
            respond(&stream, "200 OK", "text/html; charset=utf-8", &html_page(&facts))
        } else {
            let lines: Vec<String> =
                facts.iter().map(|(name, value)| format!("{name}: {value}\n")).collect();
            let lines = lines.concat();
            respond(&stream, "200 OK", "text/plain; charset=utf-8", &lines)
        }
    }

    fn facts(&self, now: &str, count: u64) -> [(&'static str, String); 5] {
        [
            ("host", self.identity.host.clone()),
            ("allocation", self.identity.allocation.clone()),
            ("name", self.identity.name.clone()),
            ("time", now.to_owned()),
            ("requests", count.to_string()),
        ]
    }
}

fn html_page(facts: &[(&str, String)]) -> String {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let rows: Vec<String> = facts
        .iter()
        .map(|(name, value)| {
            format!("<tr><th align=left>{name}</th><td>{}</td></tr>\n", escape(value))
        })
        .collect();
    let rows = rows.concat();
    format!(
        "<!doctype html>\n<title>Quorate demo</title>\n<h1>Placed by Quorate</h1>\n<table>\n{rows}</table>\n"
    )
}

struct Request<'a> {
    method: &'a str,
    path: &'a str,
    html: bool,
}

impl<'a> Request<'a> {
    fn parse(head: &'a str) -> Option<Self> {
        let mut lines = head.lines();
        let mut words = lines.next()?.split(' ');
        let (method, path, version) = (words.next()?, words.next()?, words.next()?);
        if !version.starts_with("HTTP/1.") || words.next().is_some() || method.is_empty() {
            return None;
        }
        let html = lines.filter_map(|line| line.split_once(':')).any(|(name, value)| {
            name.eq_ignore_ascii_case("accept") && value.contains("text/html")
        });
        Some(Self { method, path, html })
    }
}

fn read_head(stream: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let length = stream.read(&mut chunk)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&chunk[..length]);
        if head.len() > HEAD_BYTES_MAX {
            return Err(io::Error::other("the request's head is too large"));
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn respond(mut stream: &TcpStream, status: &str, kind: &str, body: &str) -> io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::Arc;
    use std::thread;

    use super::{Server, listen_address};
    use crate::{cli::client::Target, cli::context::Context, cli::output::Output};

    #[test]
    fn address_comes_from_the_task_environment() {
        let task = |name: &str| match name {
            "NOMAD_ADDR_http" => Some("127.0.0.1:25000".to_owned()),
            _ => None,
        };
        assert_eq!(listen_address(&task, Some(1)).unwrap().to_string(), "127.0.0.1:25000");
        let port = |name: &str| (name == "NOMAD_PORT_http").then(|| "25001".to_owned());
        assert_eq!(listen_address(&port, Some(1)).unwrap().to_string(), "0.0.0.0:25001");
        assert_eq!(listen_address(&|_| None, Some(8080)).unwrap().port(), 8080);
        assert!(listen_address(&|_| None, None).unwrap_err().to_string().contains("--port"));
    }

    #[test]
    fn answers_until_it_is_stopped() {
        let output = Arc::new(Output::memory(false));
        let target = Target { address: "http://127.0.0.1:1".to_owned(), ..Target::default() };
        let context = Context::new(target, Arc::clone(&output)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let variable = |name: &str| (name == "NOMAD_ALLOC_ID").then(|| "a<b".to_owned());
        let server = Arc::new(Server::new(&variable));
        let serving = Arc::clone(&server);
        let thread = thread::spawn(move || serving.serve(&context, &listener));
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(local).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        };
        let text = ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(text.contains("allocation: a<b\n") && text.contains("requests: 1\n"), "{text}");
        let html = ask("GET /x HTTP/1.1\r\nAccept: text/html\r\n\r\n");
        assert!(html.contains("a&lt;b") && html.contains("text/html"), "{html}");
        assert!(ask("POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(ask("nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
        server.stop(local);
        thread.join().unwrap();
        assert_eq!(output.printed().0.lines().count(), 3);
    }
}
