//! Start a program with pages of one kind, and become it: the launcher `hugewise-exec`, and `hugewise-probe exec`.
//!
//! Everything is looked at before anything is changed: what cannot be done is said with its reason, and nothing is
//! started. Then the program has this process: its number, descriptors, signals and limits are as they were.
//!
//! Exit status: that of the program; 125 what was asked for cannot be done here, 126 the program cannot be executed,
//! 127 it was not found, 2 it was asked for wrongly.
#![cfg_attr(not(test), no_std)]

mod environment;
mod library;
mod machine;
mod options;
mod program;
mod say;

use core::ffi::{CStr, c_char, c_int};

use hugewise_ground::sys;

use crate::options::{Asked, Request};
use crate::say::{Failure, Say};

/// With what this process was started.
pub struct Started<'a> {
    pub argv: &'a [*const c_char],
    /// A list of variables that ends with a null pointer.
    pub envp: *const *const c_char,
    /// The kernel has marked this process: the account that it acts for is not the one that started it (AT_SECURE).
    pub is_secure: bool,
    /// What it calls itself when it complains.
    pub name: &'static str,
}

/// Do what the arguments say. It returns only when no program was started: the exit status.
///
/// # Safety
/// `argv` are strings, `envp` a list of strings that ends with a null pointer; both stay, and nobody else changes them.
pub unsafe fn main(started: &Started) -> c_int {
    let say = Say { name: started.name };
    // SAFETY: the caller's.
    let outcome = unsafe {
        match options::read(&say, started.argv) {
            Ok(Asked::Text(text)) => return say.tell(text),
            Ok(Asked::Start(request)) => start(&say, started, &request),
            Err(failure) => Err(failure),
        }
    };
    match outcome {
        Ok(()) => 0,
        Err(Failure(status)) => status,
    }
}

/// # Safety
/// As `main`.
unsafe fn start(say: &Say, started: &Started, request: &Request) -> Result<(), Failure> {
    // SAFETY: the caller's.
    unsafe {
        let command = CStr::from_ptr(started.argv[request.command]);
        let path = hugewise_ground::text::variable(started.envp, b"PATH");
        let mut found = program::Found::default();
        program::find(say, command, path, &mut found)?;
        let mut library = library::Path::default();
        if request.layout.is_some() || !request.tunables().is_empty() {
            program::reached(say, started, request, path, &found)?;
        }
        if let Some(layout) = &request.layout {
            machine::can_have(say, layout, request.thp)?;
            library::find(say, request.library, &mut library)?;
        }
        let environment = environment::made(say, started.envp, request, &library)?;
        machine::switch(say, request.thp)?;
        if request.is_check {
            return Ok(());
        }
        let environment = match request.report {
            Some(name) => environment.with_report(say, name)?,
            None => environment,
        };
        let argv = environment::arguments(say, &started.argv[request.command..])?;
        if let Some(name) = request.argv0 {
            argv[0] = name.as_ptr();
        }
        let error = sys::execve(found.path(), argv.as_ptr(), environment.list());
        Err(program::not_executed(say, found.path().to_bytes(), error))
    }
}
