//! Interfaces by the ioctls of netdevice(7) and rt_ioctl, and free ports.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use serde_json::{Value, json};

use super::protocol::Failure;

const MOST_PORTS: usize = 1024;

/// struct rtentry of linux/route.h, which not every C library's binding has.
#[repr(C)]
struct Route {
    pad_1: libc::c_ulong,
    destination: libc::sockaddr,
    gateway: libc::sockaddr,
    mask: libc::sockaddr,
    flags: libc::c_ushort,
    pad_2: libc::c_short,
    pad_3: libc::c_ulong,
    pad_4: *mut libc::c_void,
    metric: libc::c_short,
    device: *mut libc::c_char,
    mtu: libc::c_ulong,
    window: libc::c_ulong,
    irtt: libc::c_ushort,
}

/// Give an interface an address, bring it up, and make the gateway, where there is one, the way to everywhere else.
pub fn configure(name: &str, address: Ipv4Addr, prefix: u8, gateway: Option<Ipv4Addr>) -> Result<Value, Failure> {
    if prefix > 32 {
        return Err(Failure::invalid(format!("prefix {prefix}: at most 32")));
    }
    let mask = Ipv4Addr::from(u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0));
    let socket = socket()?;
    for (what, value) in [(libc::SIOCSIFADDR, address), (libc::SIOCSIFNETMASK, mask)] {
        let mut request = request(name)?;
        request.ifr_ifru.ifru_addr = socket_address(value);
        control(&socket, what, &mut request)?;
    }
    raise(&socket, name)?;
    if let Some(gateway) = gateway {
        let anywhere = socket_address(Ipv4Addr::UNSPECIFIED);
        // SAFETY: all-zero is a valid rtentry.
        let zero: Route = unsafe { std::mem::zeroed() };
        let (gateway, flags) = (socket_address(gateway), libc::RTF_UP | libc::RTF_GATEWAY);
        let mut route = Route { destination: anywhere, gateway, mask: anywhere, flags, ..zero };
        control(&socket, libc::SIOCADDRT, &mut route)?;
    }
    Ok(json!({}))
}

/// Bring an interface up.
pub fn up(name: &str) -> io::Result<()> {
    raise(&socket()?, name)
}

/// TCP ports of the loopback that are free now.
pub fn ports(count: usize) -> Result<Value, Failure> {
    if count > MOST_PORTS {
        return Err(Failure::invalid(format!("count {count}: at most {MOST_PORTS}")));
    }
    let bind = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    // All are held until the last is found, so that none comes twice.
    let held = (0..count).map(bind).collect::<io::Result<Vec<_>>>()?;
    let ports = held.iter().map(|socket| Ok(socket.local_addr()?.port())).collect::<io::Result<Vec<_>>>()?;
    Ok(json!({"ports": ports}))
}

fn raise(socket: &OwnedFd, name: &str) -> io::Result<()> {
    let mut request = request(name)?;
    control(socket, libc::SIOCGIFFLAGS, &mut request)?;
    // SAFETY: SIOCGIFFLAGS has filled the flags.
    request.ifr_ifru.ifru_flags = unsafe { request.ifr_ifru.ifru_flags } | libc::IFF_UP as libc::c_short;
    control(socket, libc::SIOCSIFFLAGS, &mut request)
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zero is a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    Ok(request)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: integers only; the descriptor is new and owned by nobody else.
    unsafe {
        match libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) {
            -1 => Err(io::Error::last_os_error()),
            socket => Ok(OwnedFd::from_raw_fd(socket)),
        }
    }
}

fn control<T>(socket: &OwnedFd, what: libc::c_ulong, argument: &mut T) -> io::Result<()> {
    // SAFETY: each caller gives the structure that the request is defined for. C libraries differ in the request's type.
    match unsafe { libc::ioctl(socket.as_raw_fd(), what as _, std::ptr::from_mut(argument)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0 as libc::c_char; 14];
    for (place, byte) in data[2..6].iter_mut().zip(address.octets()) {
        *place = byte as libc::c_char;
    }
    libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: data }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_lies_where_the_kernel_looks() {
        let place = socket_address(Ipv4Addr::new(10, 0, 2, 15));
        assert_eq!(place.sa_family, libc::AF_INET as libc::sa_family_t);
        assert_eq!(place.sa_data[..7], [0, 0, 10, 0, 2, 15, 0]);
    }

    #[test]
    fn ports_are_free_and_differ() {
        let ports = ports(5).unwrap();
        let mut ports: Vec<u64> =
            ports["ports"].as_array().unwrap().iter().map(|port| port.as_u64().unwrap()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 5);
        assert!(super::ports(MOST_PORTS + 1).is_err());
    }

    #[test]
    fn an_interface_that_is_not_there_has_its_errno() {
        assert_eq!(up("no-such-if").unwrap_err().raw_os_error(), Some(libc::ENODEV));
        let wrong = configure("eth-with-a-long-name", Ipv4Addr::LOCALHOST, 24, None).unwrap_err();
        assert_eq!(wrong.errno, libc::EINVAL);
    }
}
