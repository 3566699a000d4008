//! Entry point.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.split_first() {
        Some((first, rest)) if first == "executor" => quorate::agent::executor_main(rest),
        Some(_) | None => ExitCode::SUCCESS,
    }
}
