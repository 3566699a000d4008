//! Tests of the proxies, with a server that answers each byte.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::io::{ErrorKind, Write};

use super::*;

/// A server that answers each byte with the byte plus one.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            std::thread::spawn(move || {
                let mut byte = [0];
                while socket.read_exact(&mut byte).is_ok() {
                    if socket.write_all(&[byte[0] + 1]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

fn dial(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    socket
}

fn exchange(socket: &mut TcpStream, byte: u8) -> std::io::Result<u8> {
    socket.write_all(&[byte])?;
    let mut answer = [0];
    socket.read_exact(&mut answer)?;
    Ok(answer[0])
}

#[test]
fn cut_links_close_and_refuse_and_others_go_on() {
    let board = Switchboard::start(&[echo(), echo(), echo()]).unwrap();
    let mut cut = dial(board.address(0, 1));
    let mut reverse = dial(board.address(1, 0));
    let mut other = dial(board.address(0, 2));
    for socket in [&mut cut, &mut reverse, &mut other] {
        assert_eq!(exchange(socket, 1).unwrap(), 2);
    }
    assert_eq!((board.bytes(0, 1), board.bytes(0, 2), board.bytes(2, 1)), (2, 1, 0));

    board.block(&[(0, 1)], Flow::Cut);
    assert!(exchange(&mut cut, 1).is_err());
    assert!(exchange(&mut reverse, 1).is_err(), "a connection needs both directions");
    assert!(exchange(&mut dial(board.address(0, 1)), 1).is_err());
    assert_eq!(exchange(&mut other, 5).unwrap(), 6);

    board.block(&[], Flow::Open);
    assert_eq!(exchange(&mut dial(board.address(0, 1)), 3).unwrap(), 4);
}

#[test]
fn held_flows_deliver_late_and_only_that_direction_waits() {
    let board = Switchboard::start(&[echo(), echo()]).unwrap();
    let mut socket = dial(board.address(0, 1));
    assert_eq!(exchange(&mut socket, 1).unwrap(), 2);
    // Answers of server 1 wait; what server 0 sends still arrives there.
    board.block(&[(1, 0)], Flow::Held);
    socket.write_all(&[7]).unwrap();
    let end = Instant::now() + Duration::from_mins(1);
    while board.bytes(0, 1) < 2 {
        assert!(Instant::now() < end, "what server 0 sends waits, too");
        std::thread::yield_now();
    }
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut answer = [0];
    assert!(socket.read_exact(&mut answer).is_err());
    assert_eq!(board.bytes(1, 0), 1);
    board.block(&[], Flow::Open);
    socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [8]);
}

#[test]
fn a_connection_opened_while_held_is_served_after_the_heal() {
    let board = Switchboard::start(&[echo(), echo()]).unwrap();
    board.block(&[(0, 1), (1, 0)], Flow::Held);
    let mut socket = dial(board.address(0, 1));
    socket.write_all(&[1]).unwrap();
    board.block(&[], Flow::Open);
    let mut answer = [0];
    socket.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [2]);
}

#[test]
fn dropping_ends_every_thread_even_when_flows_are_held() {
    let board = Switchboard::start(&[echo(), echo()]).unwrap();
    let mut socket = dial(board.address(0, 1));
    assert_eq!(exchange(&mut socket, 1).unwrap(), 2);
    board.block(&[(0, 1), (1, 0)], Flow::Held);
    socket.write_all(&[1]).unwrap();
    drop(board);
    let mut rest = Vec::new();
    // Either end of file or a reset, but not a timeout.
    let ended = socket.read_to_end(&mut rest);
    assert!(
        ended.as_ref().map_or_else(
            |error| error.kind() == std::io::ErrorKind::ConnectionReset,
            |count| *count == 0
        ),
        "{ended:?}"
    );
}

#[test]
fn a_black_hole_stays_silent_for_its_connections_even_after_the_heal() {
    let board = Switchboard::start(&[echo(), echo()]).unwrap();
    let mut old = dial(board.address(0, 1));
    assert_eq!(exchange(&mut old, 1).unwrap(), 2);
    board.swallow(&[(1, 0)]);
    let mut new = dial(board.address(0, 1));
    let silent = |socket: &mut TcpStream| {
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        matches!(exchange(socket, 1).unwrap_err().kind(), ErrorKind::WouldBlock)
    };
    assert!(silent(&mut old) && silent(&mut new));
    board.swallow(&[]);
    assert!(silent(&mut old) && silent(&mut new), "neither end is told");
    assert_eq!(exchange(&mut dial(board.address(0, 1)), 3).unwrap(), 4);
    assert!(board.met().swallowed >= 2, "{:?}", board.met());
}

#[test]
fn slow_flows_deliver_in_order_and_not_early() {
    let board = Switchboard::start(&[echo(), echo()]).unwrap();
    let least = Duration::from_millis(50);
    board.delay(&[(0, 1)], Delay { from: least, to: Duration::from_millis(80) });
    let mut socket = dial(board.address(0, 1));
    let started = Instant::now();
    let mut answers = Vec::new();
    for byte in 0..20 {
        socket.write_all(&[byte]).unwrap();
    }
    for _ in 0..20 {
        let mut answer = [0];
        socket.read_exact(&mut answer).unwrap();
        answers.push(answer[0]);
    }
    assert!(started.elapsed() >= least);
    assert_eq!(answers, (1..=20).collect::<Vec<u8>>());
    assert!(board.met().delayed > 0);
    board.delay(&[], Delay { from: least, to: least });
    let before = board.met().delayed;
    assert_eq!(exchange(&mut socket, 1).unwrap(), 2);
    assert_eq!(board.met().delayed, before);
}

#[test]
fn lossy_flows_reset_connections() {
    let board = Switchboard::start(&[echo(), echo()]).unwrap();
    let mut socket = dial(board.address(0, 1));
    assert_eq!(exchange(&mut socket, 1).unwrap(), 2);
    let stall = Delay { from: Duration::ZERO, to: Duration::ZERO };
    board.lose(&[(0, 1)], Loss { stall_percent: 0, stall, reset_percent: 100 });
    let error = exchange(&mut socket, 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(board.met().lost, 1);
    board.lose(&[], Loss { stall_percent: 0, stall, reset_percent: 0 });
    assert_eq!(exchange(&mut dial(board.address(0, 1)), 3).unwrap(), 4);
}

#[test]
fn flapping_flows_are_held_and_open_by_turns() {
    let turn = Duration::from_millis(200);
    let milliseconds = Duration::from_millis;
    assert_eq!(until_open(Duration::ZERO, turn), Some(turn));
    assert_eq!(until_open(milliseconds(150), turn), Some(milliseconds(50)));
    assert_eq!(until_open(milliseconds(200), turn), None);
    assert_eq!(until_open(milliseconds(399), turn), None);
    assert_eq!(until_open(milliseconds(400), turn), Some(turn));
    let board = Switchboard::start(&[echo(), echo()]).unwrap();
    board.block(&[(0, 1)], Flow::Flapping(milliseconds(5)));
    assert_eq!(exchange(&mut dial(board.address(0, 1)), 3).unwrap(), 4);
}
