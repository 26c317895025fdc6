//! The program's C library: weak references, so that one without them is no error of the loader's.

use core::arch::global_asm;
use core::ffi::{c_char, c_int, c_ulong, c_void};
use core::mem::transmute;
use core::ptr;

// In the order of the fields of `Libc`. Each word is the address, or zero where no library of the program has it.
global_asm!(
    ".weak mallopt",
    ".weak malloc",
    ".weak realloc",
    ".weak free",
    ".weak sbrk",
    ".weak __errno_location",
    ".weak getauxval",
    ".weak environ",
    ".weak __libc_malloc",
    ".weak tc_malloc",
    ".weak mallctl",
    ".weak mi_malloc",
    ".weak __libc_free",
    ".pushsection .data.rel.ro.hugewise, \"aw\"",
    ".balign 8",
    ".globl hugewise_of_libc",
    ".hidden hugewise_of_libc",
    "hugewise_of_libc:",
    ".quad mallopt, malloc, realloc, free, sbrk, __errno_location, getauxval, environ",
    ".quad __libc_malloc, tc_malloc, mallctl, mi_malloc, __libc_free",
    ".size hugewise_of_libc, . - hugewise_of_libc",
    ".popsection",
);

unsafe extern "C" {
    static hugewise_of_libc: [usize; 13];
}

/// malloc(3), mallopt(3) and sbrk(2) of the program.
pub struct Libc {
    pub mallopt: Option<unsafe extern "C" fn(c_int, c_int) -> c_int>,
    pub malloc: Option<unsafe extern "C" fn(usize) -> *mut c_void>,
    pub realloc: Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>,
    pub free: Option<unsafe extern "C" fn(*mut c_void)>,
    pub sbrk: Option<unsafe extern "C" fn(isize) -> *mut c_void>,
    errno: Option<unsafe extern "C" fn() -> *mut c_int>,
    getauxval: Option<unsafe extern "C" fn(c_ulong) -> c_ulong>,
    environ: *mut *mut *mut c_char,
    /// glibc's own, by names that no other allocator takes.
    glibc: Option<Glibc>,
    /// `malloc` is at another address: another allocator's, or a second address of a program that has a fixed place.
    has_own_address: bool,
    /// Another allocator is there, by a function that it alone has.
    has_other: bool,
}

#[derive(Clone, Copy)]
struct Glibc {
    malloc: unsafe extern "C" fn(usize) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
}

pub type ErrnoLocation = Option<unsafe extern "C" fn() -> *mut c_int>;

impl Libc {
    pub fn found() -> Libc {
        // SAFETY: the table is filled by the loader before constructors run; volatile, for the compiler sees no writer.
        // A null word is None of an optional function pointer.
        unsafe {
            let words = ptr::read_volatile(&raw const hugewise_of_libc);
            let malloc = transmute::<usize, Option<unsafe extern "C" fn(usize) -> *mut c_void>>(words[8]);
            let free = transmute::<usize, Option<unsafe extern "C" fn(*mut c_void)>>(words[12]);
            Libc {
                mallopt: transmute::<usize, Option<unsafe extern "C" fn(c_int, c_int) -> c_int>>(words[0]),
                malloc: transmute::<usize, Option<unsafe extern "C" fn(usize) -> *mut c_void>>(words[1]),
                realloc: transmute::<usize, Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>>(words[2]),
                free: transmute::<usize, Option<unsafe extern "C" fn(*mut c_void)>>(words[3]),
                sbrk: transmute::<usize, Option<unsafe extern "C" fn(isize) -> *mut c_void>>(words[4]),
                errno: transmute::<usize, ErrnoLocation>(words[5]),
                getauxval: transmute::<usize, Option<unsafe extern "C" fn(c_ulong) -> c_ulong>>(words[6]),
                environ: words[7] as *mut *mut *mut c_char,
                glibc: malloc.zip(free).map(|(malloc, free)| Glibc { malloc, free }),
                has_own_address: words[1] != words[8],
                has_other: words[9..12].iter().any(|&word| word != 0),
            }
        }
    }

    /// The environment as the program will see it: `given` to constructors by glibc, and by no other C library.
    ///
    /// # Safety
    /// No other thread changes it meanwhile.
    pub unsafe fn environment(&self, given: *mut *mut c_char) -> Option<*mut *mut c_char> {
        // SAFETY: a variable of the C library, once it is there.
        let own = (!self.environ.is_null()).then(|| unsafe { *self.environ }).filter(|found| !found.is_null());
        own.or(self.glibc.map(|_| given))
    }

    /// Whether malloc is another one than glibc's. `freed` is what malloc gave for so many bytes, and has taken back: more
    /// than it keeps for later, so that glibc gives the same again.
    ///
    /// # Safety
    /// No other thread allocates meanwhile.
    pub unsafe fn is_replaced(&self, freed: *mut c_void, bytes: usize) -> bool {
        let Some(glibc) = self.glibc.filter(|_| !self.has_other) else { return true };
        if !self.has_own_address {
            return false;
        }
        // SAFETY: what glibc gave is given back to glibc.
        unsafe {
            let again = (glibc.malloc)(bytes);
            (glibc.free)(again);
            again != freed
        }
    }

    /// Bytes of a base page; 4096 where nobody says it.
    pub fn page_size(&self) -> u64 {
        const AT_PAGESZ: c_ulong = 6;
        // SAFETY: any number may be asked for.
        self.getauxval.map_or(4096, |ask| unsafe { ask(AT_PAGESZ) })
    }

    pub fn errno_location(&self) -> ErrnoLocation {
        self.errno
    }

    pub fn errno(&self) -> c_int {
        // SAFETY: this thread's own variable.
        self.errno.map_or(0, |location| unsafe { *location() })
    }

    pub fn set_errno(&self, value: c_int) {
        if let Some(location) = self.errno {
            // SAFETY: this thread's own variable.
            unsafe { *location() = value };
        }
    }
}
