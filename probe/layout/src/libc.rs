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
    ".pushsection .data.rel.ro.hugewise, \"aw\"",
    ".balign 8",
    ".globl hugewise_of_libc",
    ".hidden hugewise_of_libc",
    "hugewise_of_libc:",
    ".quad mallopt, malloc, realloc, free, sbrk, __errno_location, getauxval, environ",
    ".quad __libc_malloc, tc_malloc, mallctl, mi_malloc",
    ".size hugewise_of_libc, . - hugewise_of_libc",
    ".popsection",
);

unsafe extern "C" {
    static hugewise_of_libc: [usize; 12];
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
    /// Another allocator than glibc's is there.
    pub is_replaced: bool,
}

pub type ErrnoLocation = Option<unsafe extern "C" fn() -> *mut c_int>;

impl Libc {
    pub fn found() -> Libc {
        // SAFETY: the table is filled by the loader before constructors run; volatile, for the compiler sees no writer.
        // A null word is None of an optional function pointer.
        unsafe {
            let words = ptr::read_volatile(&raw const hugewise_of_libc);
            let own_malloc = words[8] != 0 && words[1] == words[8];
            Libc {
                mallopt: transmute::<usize, Option<unsafe extern "C" fn(c_int, c_int) -> c_int>>(words[0]),
                malloc: transmute::<usize, Option<unsafe extern "C" fn(usize) -> *mut c_void>>(words[1]),
                realloc: transmute::<usize, Option<unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void>>(words[2]),
                free: transmute::<usize, Option<unsafe extern "C" fn(*mut c_void)>>(words[3]),
                sbrk: transmute::<usize, Option<unsafe extern "C" fn(isize) -> *mut c_void>>(words[4]),
                errno: transmute::<usize, ErrnoLocation>(words[5]),
                getauxval: transmute::<usize, Option<unsafe extern "C" fn(c_ulong) -> c_ulong>>(words[6]),
                environ: words[7] as *mut *mut *mut c_char,
                // A program that is not position-independent may have an address of its own for glibc's malloc.
                is_replaced: !own_malloc && words[9..].iter().any(|&word| word != 0),
            }
        }
    }

    /// The environment as the program will see it.
    ///
    /// # Safety
    /// No other thread changes it meanwhile.
    pub unsafe fn environment(&self) -> Option<*mut *mut c_char> {
        // SAFETY: a variable of the C library, once it is there.
        (!self.environ.is_null()).then(|| unsafe { *self.environ }).filter(|found| !found.is_null())
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
