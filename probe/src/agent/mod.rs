//! `agent`: does what the host of a guest asks it to, and is the guest's init. docs/design/guests.md is its contract.
//!
//! `common`, `protocol`, `machine`, `process` and `scan` may be imported here: what launches is asked of another process
//! of this program. A new request goes into `protocol` and `server`, and what it does into a file by its subject.

mod boot;
mod channel;
mod children;
mod files;
mod network;
mod protocol;
mod server;

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::machine::pages;
use crate::process::signals::Signals;
use channel::Channel;
use children::Children;
use protocol::{Hello, Said};
use server::Server;

pub use protocol::{encode, examples};

/// Where the initramfs has requests that are to be done before the host is heard.
const ORDERS: &str = "/orders.jsonl";

#[derive(Debug, clap::Args)]
pub struct AgentArgs {
    /// The way to the host: a file such as a serial port, or - for stdin and stdout
    /// [default: the virtio-serial port named hugewise]
    #[arg(long, value_name = "PATH")]
    channel: Option<PathBuf>,
    /// Requests to do first; what they say comes when the last is done
    #[arg(long, value_name = "FILE")]
    orders: Option<PathBuf>,
    /// End when nothing was heard for so many seconds: whoever asks is cut off
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    silence: Option<u64>,
}

/// `hugewise-probe agent`, as an ordinary process: it serves until the channel ends, and leaves nothing running.
pub fn main(args: &AgentArgs) -> Result<ExitCode> {
    let folder = std::env::temp_dir().join(format!("hugewise-agent-{}", std::process::id()));
    let orders = args.orders.as_deref().map(read_orders).transpose()?.flatten();
    // A new one of its own: in a folder that everybody may write, a stranger could have made it before.
    let made = fs::DirBuilder::new().mode(0o700).create(&folder);
    made.with_context(|| format!("cannot make {}", folder.display()))?;
    let silence = args.silence.map(Duration::from_secs);
    let served = serve(&folder, orders.as_deref(), silence, || match &args.channel {
        None => Channel::port(),
        Some(path) if path.as_os_str() == "-" => Ok(Channel::standard()?),
        Some(path) => Channel::open(path),
    });
    fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    served.map(|()| ExitCode::SUCCESS)
}

/// Whether the kernel has started this program as the init of its initramfs.
pub fn is_init() -> bool {
    let is_named = std::env::args_os().next().is_some_and(|name| Path::new(&name).file_name() == Some("init".as_ref()));
    std::process::id() == 1 && is_named
}

/// The life of init: it ends with the guest.
pub fn init() -> ! {
    if let Err(error) = as_init() {
        eprintln!("hugewise-probe agent: {error:#}");
    }
    boot::leave()
}

fn as_init() -> Result<()> {
    // Before another root hides them.
    let orders = read_orders(Path::new(ORDERS))?;
    boot::boot()?;
    serve(Path::new("/run/hugewise-agent"), orders.as_deref(), None, Channel::port)
}

fn read_orders(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(orders) => Ok(Some(orders)),
        Err(error) if error.kind() == ErrorKind::NotFound && path == Path::new(ORDERS) => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Orders first, then the channel, which is opened only then: nothing comes from outside while orders are done.
fn serve(
    folder: &Path,
    orders: Option<&[u8]>,
    silence: Option<Duration>,
    open: impl FnOnce() -> Result<Channel>,
) -> Result<()> {
    let signals = Signals::block_children().context("cannot block SIGCHLD")?;
    let mut server = Server::new(signals, Children::new(folder.to_owned()));
    server.say(&Said::Hello { hello: hello() });
    server.obey(orders.unwrap_or_default()).context("orders")?;
    let channel = open()?;
    let served = server.serve(&channel, silence).context("the channel");
    server.end_all().context("ending what runs")?;
    served
}

fn hello() -> Hello {
    let uname = rustix::system::uname();
    let cpus = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    Hello {
        v: protocol::VERSION,
        probe: env!("CARGO_PKG_VERSION").into(),
        arch: uname.machine().to_string_lossy().into_owned(),
        release: uname.release().to_string_lossy().into_owned(),
        page_size: pages::base(),
        cpus: (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)).collect(),
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim_end().into(),
    }
}
