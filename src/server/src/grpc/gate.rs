//! What calls may hold before and while they are served: in number, in bytes of messages that are
//! not whole yet, and in time until they are whole.
//!
//! ```text
//!  connection ─► Gated ─► tonic's decoder (a message is copied together) ─► service ─► answer
//!                 │ a place among the calls, until the answer begins
//!                 └ the message's announced length, from its first byte until the next message
//!                   or the answer begins
//! ```
//! A message announces its length in five bytes before it (the gRPC protocol's length prefix), so
//! that what it will take is known before it is there.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::BoxFuture};
use ground::rt::{self, OwnedSemaphorePermit, Semaphore, Sleep};
use hyper::body::{Frame, SizeHint};
use tonic::{
    Status,
    body::Body,
    codegen::{
        Service,
        http::{Request, Response},
    },
    server::NamedService,
};

/// What all calls of a listener may hold.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Calls that are not answered yet. A stream counts until its answer begins.
    pub calls: usize,
    /// Announced bytes of messages under way.
    pub message_bytes: usize,
    /// How long a call may take to send its first message, and any message to become whole.
    pub message_time: Duration,
}

/// Clients, agents and workers: four of the largest messages that one may send.
pub const OF_CLIENTS: Bounds =
    Bounds { calls: 8_192, message_bytes: 256 << 20, message_time: Duration::from_secs(30) };
/// Servers: few connections, each with an append or a piece of a snapshot under way.
pub const OF_PEERS: Bounds =
    Bounds { calls: 1_024, message_bytes: 512 << 20, message_time: Duration::from_secs(30) };

/// Messages below this count by their call alone, bytes.
const SMALL_BYTES: usize = 16 << 10;
/// Length of a message's prefix: a flag and a length (the gRPC protocol over HTTP/2).
const PREFIX: usize = 5;

/// What calls hold at the moment.
#[derive(Clone, Debug)]
pub struct Gate {
    calls: Arc<Semaphore>,
    kib: Arc<Semaphore>,
    message_time: Duration,
}

impl Gate {
    /// Nothing is held yet.
    pub fn new(bounds: Bounds) -> Self {
        Self {
            calls: Arc::new(Semaphore::new(bounds.calls)),
            kib: Arc::new(Semaphore::new(bounds.message_bytes / 1_024)),
            message_time: bounds.message_time,
        }
    }

    /// A service behind it, whose messages may have so many bytes.
    pub fn before<S>(&self, service: S, message_bytes_max: usize) -> Gated<S> {
        Gated { service, gate: self.clone(), message_bytes_max }
    }
}

fn exhausted(what: &str) -> Status {
    Status::resource_exhausted(format!("this server has {what}: try again"))
}

/// A service behind a gate.
#[derive(Clone, Debug)]
pub struct Gated<S> {
    service: S,
    gate: Gate,
    message_bytes_max: usize,
}

impl<S: NamedService> NamedService for Gated<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Ok(place) = Arc::clone(&self.gate.calls).try_acquire_owned() else {
            let refused = exhausted("too many calls under way").into_http();
            return std::future::ready(Ok(refused)).boxed();
        };
        let held = Arc::new(Held::default());
        let request = request.map(|body| {
            Body::new(Metered {
                body,
                meter: Meter::default(),
                message_bytes_max: self.message_bytes_max,
                kib: Arc::clone(&self.gate.kib),
                held: Arc::clone(&held),
                message_time: self.gate.message_time,
                time: Some(Box::pin(rt::sleep(self.gate.message_time))),
            })
        });
        let answer = self.service.call(request);
        async move {
            let answer = answer.await;
            drop((place, held.take()));
            answer
        }
        .boxed()
    }
}

/// The share of a message, between the body that it came by and the call that it is for.
#[derive(Debug, Default)]
struct Held(std::sync::Mutex<Option<OwnedSemaphorePermit>>);

impl Held {
    fn set(&self, share: Option<OwnedSemaphorePermit>) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = share;
    }

    fn take(&self) -> Option<OwnedSemaphorePermit> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

/// Where in its messages a body is.
#[derive(Debug, Default)]
struct Meter {
    prefix: [u8; PREFIX],
    /// Bytes of the prefix that have come.
    prefix_come: usize,
    /// Bytes of the message that are still to come.
    left: usize,
}

/// What passes by.
#[derive(Debug, PartialEq, Eq)]
enum Passed {
    /// A message of this length begins.
    Begins(usize),
    /// A message is whole.
    Whole,
    /// The bytes end within a message, or its prefix.
    Within,
    /// The bytes end between messages.
    Between,
}

impl Meter {
    /// The next thing that happens in `bytes`, which are taken off as far as it is.
    fn next(&mut self, bytes: &mut &[u8]) -> Passed {
        if self.prefix_come < PREFIX {
            let taken = (PREFIX - self.prefix_come).min(bytes.len());
            let (head, rest) = bytes.split_at(taken);
            self.prefix[self.prefix_come..self.prefix_come + taken].copy_from_slice(head);
            (self.prefix_come, *bytes) = (self.prefix_come + taken, rest);
            if self.prefix_come < PREFIX {
                return if self.prefix_come == 0 { Passed::Between } else { Passed::Within };
            }
            let [_, length @ ..] = self.prefix;
            self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            return Passed::Begins(self.left);
        }
        let taken = self.left.min(bytes.len());
        *bytes = &bytes[taken..];
        self.left -= taken;
        if self.left > 0 {
            return Passed::Within;
        }
        self.prefix_come = 0;
        Passed::Whole
    }
}

/// A request's body whose messages take their share before they come.
struct Metered {
    body: Body,
    meter: Meter,
    message_bytes_max: usize,
    kib: Arc<Semaphore>,
    held: Arc<Held>,
    message_time: Duration,
    /// Ends the time of a message that is not whole.
    time: Option<Pin<Box<Sleep>>>,
}

impl Metered {
    fn pass(&mut self, mut bytes: &[u8]) -> Result<(), Status> {
        loop {
            match self.meter.next(&mut bytes) {
                Passed::Begins(length) => self.begin(length)?,
                Passed::Whole => self.time = None,
                Passed::Between => return Ok(()),
                Passed::Within => {
                    let time = self.message_time;
                    self.time.get_or_insert_with(|| Box::pin(rt::sleep(time)));
                    return Ok(());
                }
            }
        }
    }

    fn begin(&self, length: usize) -> Result<(), Status> {
        if length > self.message_bytes_max {
            let most = self.message_bytes_max;
            let what = format!("a message of {length} bytes: here {most} bytes are the most");
            return Err(Status::out_of_range(what));
        }
        // The one before was decoded when more is asked of the body.
        drop(self.held.take());
        if length >= SMALL_BYTES {
            let kib = u32::try_from(length.div_ceil(1_024)).unwrap_or(u32::MAX);
            let share = Arc::clone(&self.kib).try_acquire_many_owned(kib);
            let share = share.map_err(|_| exhausted("too many bytes of messages under way"))?;
            self.held.set(Some(share));
        }
        Ok(())
    }
}

impl hyper::body::Body for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let passed = frame.data_ref().map_or(Ok(()), |data| this.pass(data));
                Poll::Ready(Some(passed.map(|()| frame)))
            }
            Poll::Ready(other) => Poll::Ready(other),
            Poll::Pending => {
                let Some(time) = this.time.as_mut() else { return Poll::Pending };
                match time.as_mut().poll(context) {
                    Poll::Pending => Poll::Pending,
                    Poll::Ready(()) => {
                        let time = this.message_time;
                        let what = format!("no whole message came within {time:?}");
                        Poll::Ready(Some(Err(Status::deadline_exceeded(what))))
                    }
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::sync::Mutex;

    use futures_util::{StreamExt, stream};
    use tonic::Code;

    use super::*;

    /// Reads its whole body before it answers, as a service with one message does.
    #[derive(Clone)]
    struct Reads;

    impl Service<Request<Body>> for Reads {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            async move {
                let body =
                    axum::body::to_bytes(axum::body::Body::new(request.into_body()), 1 << 30);
                Ok(match body.await {
                    Ok(_) => Response::new(Body::empty()),
                    Err(error) => Status::from_error(error.into_inner()).into_http(),
                })
            }
            .boxed()
        }
    }

    fn message(length: u32, come: usize) -> Bytes {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&length.to_be_bytes());
        bytes.resize(PREFIX + come, 7);
        bytes.into()
    }

    /// A body of these pieces, which ends only if it is to.
    fn body(pieces: Vec<Bytes>, ends: bool) -> Body {
        let pieces = stream::iter(pieces.into_iter().map(Ok::<_, Infallible>));
        let rest = if ends { stream::empty().boxed() } else { stream::pending().boxed() };
        Body::new(axum::body::Body::from_stream(pieces.chain(rest)))
    }

    fn code(answer: Result<Response<Body>, Infallible>) -> Code {
        let answer = answer.unwrap();
        Status::from_header_map(answer.headers()).map_or(Code::Ok, |status| status.code())
    }

    fn gated(calls: usize, message_bytes: usize) -> Gated<Reads> {
        let message_time = Duration::from_secs(5);
        Gate::new(Bounds { calls, message_bytes, message_time }).before(Reads, 1 << 20)
    }

    #[test]
    fn messages_are_found_however_their_bytes_are_cut() {
        let bytes = [message(3, 3), message(0, 0), message(70_000, 70_000)].concat();
        for cut in [1, 4, 5, 6, 1_000, bytes.len()] {
            let (mut meter, mut seen) = (Meter::default(), Vec::new());
            for piece in bytes.chunks(cut) {
                let mut piece = piece;
                loop {
                    match meter.next(&mut piece) {
                        Passed::Within | Passed::Between => break,
                        passed @ (Passed::Begins(_) | Passed::Whole) => seen.push(passed),
                    }
                }
            }
            let expected = [3, 0, 70_000].map(|length| [Passed::Begins(length), Passed::Whole]);
            assert_eq!(seen, expected.into_iter().flatten().collect::<Vec<_>>(), "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn a_message_over_the_bound_is_refused_by_its_prefix() {
        let mut gated = gated(9, 9 << 20);
        let large = body(vec![message((1 << 20) + 1, 0)], false);
        assert_eq!(code(gated.call(Request::new(large)).await), Code::OutOfRange);
        let fits = body(vec![message(1 << 20, 1 << 20)], true);
        assert_eq!(code(gated.call(Request::new(fits)).await), Code::Ok);
    }

    #[tokio::test(start_paused = true)]
    async fn messages_under_way_share_a_bound_and_have_a_limited_time() {
        let gated = Arc::new(Mutex::new(gated(9, 2 << 20)));
        let call = |body| gated.lock().unwrap().call(Request::new(body));
        let unfinished = || body(vec![message(1 << 20, 100)], false);
        let waiting = [(); 2].map(|()| tokio::spawn(call(unfinished())));
        tokio::task::yield_now().await;
        assert_eq!(code(call(unfinished()).await), Code::ResourceExhausted);
        let small = body(vec![message(100, 100)], true);
        assert_eq!(code(call(small).await), Code::Ok, "small ones are not held up");
        for waiting in waiting {
            assert_eq!(code(waiting.await.unwrap()), Code::DeadlineExceeded);
        }
        let whole = || body(vec![message(1 << 20, 1 << 20)], true);
        assert_eq!(code(call(whole()).await), Code::Ok, "all is given back");
        assert_eq!(code(call(whole()).await), Code::Ok, "also after a whole one");
        let nothing = body(Vec::new(), false);
        assert_eq!(code(call(nothing).await), Code::DeadlineExceeded, "no message at all");
    }

    #[tokio::test]
    async fn calls_share_a_bound() {
        let mut gated = gated(1, 9 << 20);
        let first = tokio::spawn(gated.call(Request::new(body(Vec::new(), false))));
        tokio::task::yield_now().await;
        let second = gated.call(Request::new(body(Vec::new(), true)));
        assert_eq!(code(second.await), Code::ResourceExhausted);
        first.abort();
        drop(first.await);
        assert_eq!(code(gated.call(Request::new(body(Vec::new(), true))).await), Code::Ok);
    }
}
