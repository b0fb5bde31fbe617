// Package kernelcall makes system calls that can wait for a storage system
// without end, such as umount(2), each in a process of its own.
//
// SIGKILL does not end every such wait, and a process that is killed keeps its file
// locks, sockets and ports until its last thread ends. So a call in a thread of
// the driver would keep the next driver from starting. The call's own process
// inherits only the locks that its context holds (Holding): the next driver
// starts, and finds exactly the object of the call locked until the kernel has
// finished. The process leaves the cgroups of a pod in the host's PID namespace,
// so that the pod can end before the call does.
package kernelcall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// processName is the first argument of a call's process; the next ones are
	// the operation and the locked objects.
	processName = "cleat-kernel-call"
	// operationFlag is not known to the flags of a program that does not call
	// Main, such as a test program: it ends.
	operationFlag = "--operation="
)

// Main makes the call, and does not return, if this process is a call's own. A
// program that uses this package calls it first in its main function, a test
// program in TestMain.
func Main() {
	if isCall() {
		runtime.LockOSThread() // the key belongs to the thread
		os.Exit(serve(os.Stdin, os.Stdout))
	}
}

func isCall() bool { return os.Args[0] == processName }

// ErrKey means that the kernel refused the key, so the call was not made.
var ErrKey = errors.New("add the key to the kernel's keyring")

// Key is a Ceph key that only the call's process can read.
type Key struct {
	Name    string
	Payload []byte
}

// Unmount calls umount2(2).
func Unmount(ctx context.Context, target string, flags int) error {
	_, err := run(ctx, call{Operation: "umount", Path: target, Flags: uintptr(flags)})
	return err
}

// Mount calls mount(2).
func Mount(ctx context.Context, source, target, fsType string, flags uintptr, data string, key Key) error {
	_, err := run(ctx, call{Operation: "mount", Path: target, Source: source, FSType: fsType, Flags: flags, Data: data, Key: key})
	return err
}

// CreateSuperblock calls fsconfig(2) with FSCONFIG_CMD_CREATE.
func CreateSuperblock(ctx context.Context, fd int) error {
	context, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(context), "file system context")
	defer f.Close()
	_, err = run(ctx, call{Operation: "fsconfig"}, f)
	return err
}

// SyncFS calls syncfs(2) for the file system of a directory.
func SyncFS(ctx context.Context, dir string) error {
	_, err := run(ctx, call{Operation: "syncfs", Path: dir})
	return err
}

// Sync calls fsync(2).
func Sync(ctx context.Context, f *os.File) error {
	_, err := run(ctx, call{Operation: "fsync"}, f)
	return pathError("fsync", f.Name(), err)
}

// Fallocate calls fallocate(2).
func Fallocate(ctx context.Context, f *os.File, mode uint32, offset, size int64) error {
	_, err := run(ctx, call{Operation: "fallocate", Flags: uintptr(mode), Offset: offset, Size: size}, f)
	return pathError("fallocate", f.Name(), err)
}

// Write makes one write(2) to a file, such as one of sysfs.
func Write(ctx context.Context, path, text string, key Key) error {
	_, err := run(ctx, call{Operation: "write", Path: path, Data: text, Key: key})
	return pathError("write", path, err)
}

// Request makes one write(2) to a file and returns what it then reads.
func Request(ctx context.Context, path, text string) (answer string, err error) {
	r, err := run(ctx, call{Operation: "request", Path: path, Data: text})
	return string(r.Answer), pathError("request", path, err)
}

// Ioctl calls ioctl(2) with a pointer to arg, which has no pointers, and returns
// its result. The files have the descriptors from FirstFile on in the call.
func Ioctl[T any](ctx context.Context, f *os.File, request uintptr, arg *T, files ...*os.File) (int, error) {
	memory := unsafe.Slice((*byte)(unsafe.Pointer(arg)), unsafe.Sizeof(*arg))
	r, err := run(ctx, call{Operation: "ioctl", Flags: request, Memory: memory}, append([]*os.File{f}, files...)...)
	copy(memory, r.Answer)
	return r.Value, err
}

// ReadDirect reads the start of a file with O_DIRECT, up to size bytes. size is a
// multiple of the file's block size.
func ReadDirect(ctx context.Context, path string, size int) ([]byte, error) {
	r, err := run(ctx, call{Operation: "read", Path: path, Size: int64(size)})
	return r.Answer, pathError("read", path, err)
}

// LeaveCgroups moves another process of this PID namespace out of the cgroups of
// a pod, as each call's own process, where that is possible.
func LeaveCgroups(ctx context.Context, pid int) error {
	_, err := run(ctx, call{Operation: "leave cgroups", Data: strconv.Itoa(pid)})
	return err
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &os.PathError{Op: op, Path: path, Err: err}
}

type held struct {
	objects []string
	locks   []*os.File
}

type heldKey struct{}

// Holding returns a context whose calls keep an object's lock, which belongs to
// the open file, until they have ended.
func Holding(ctx context.Context, object string, lock *os.File) context.Context {
	outer, _ := ctx.Value(heldKey{}).(held)
	return context.WithValue(ctx, heldKey{}, held{append(slices.Clip(outer.objects), object), append(slices.Clip(outer.locks), lock)})
}

// Running describes the running calls for an object, also of processes that
// have ended: "umount in process 4711, state D". Calls in other PID namespaces
// are not visible.
func Running(object string) string {
	var found []string
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		line, _ := os.ReadFile(path)
		args := strings.Split(string(line), "\x00")
		if len(args) < 3 || args[0] != processName || !slices.Contains(args[2:], object) {
			continue
		}
		operation, pid := strings.TrimPrefix(args[1], operationFlag), filepath.Base(filepath.Dir(path))
		found = append(found, fmt.Sprintf("%s in process %s, state %s", operation, pid, stateOf(pid)))
	}
	return strings.Join(found, "; ")
}

func stateOf(pid string) string {
	stat, _ := os.ReadFile("/proc/" + pid + "/stat")
	if end := bytes.LastIndexByte(stat, ')'); end >= 0 && len(stat) > end+2 {
		return string(stat[end+2])
	}
	return "ended"
}

type call struct {
	Operation    string
	Path         string
	Source       string
	FSType, Data string
	Flags        uintptr
	Key          Key
	Memory       []byte // of an ioctl's argument
	Offset, Size int64
}

type result struct {
	Errno   unix.Errno
	Keyring bool // add_key(2) failed
	Value   int
	Answer  []byte
}

var errNoMain = errors.New("the program must call kernelcall.Main first in its main function, a test program in TestMain")

// run waits for the call, regardless of ctx.
func run(ctx context.Context, c call, files ...*os.File) (r result, err error) {
	if isCall() {
		return r, fmt.Errorf("system call %s: %w", c.Operation, errNoMain)
	}
	request, err := json.Marshal(c)
	if err != nil {
		return r, err
	}
	h, _ := ctx.Value(heldKey{}).(held)
	var out bytes.Buffer
	p := exec.Cmd{
		Path: "/proc/self/exe", Args: append([]string{processName, operationFlag + c.Operation}, h.objects...), Dir: "/",
		// A program built with the race detector waits a second at its end by default.
		Env:   []string{"GOMAXPROCS=1", "GORACE=atexit_sleep_ms=0"},
		Stdin: bytes.NewReader(request), Stdout: &out, ExtraFiles: append(files, h.locks...),
		// No signals of a terminal. A call that a signal can end does not outlive
		// the driver.
		SysProcAttr: &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL},
	}
	// The kernel sends the signal when the thread that started the process exits.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = p.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		return r, fmt.Errorf("process for the system call %s: %w: %w", c.Operation, err, errNoMain)
	case err != nil:
		return r, fmt.Errorf("process for the system call %s: %w", c.Operation, err)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		return r, fmt.Errorf("process for the system call %s: decode its answer: %w: %w", c.Operation, err, errNoMain)
	}
	switch {
	case r.Keyring:
		return r, fmt.Errorf("%w: %w", ErrKey, r.Errno)
	case r.Errno != 0:
		return r, r.Errno
	}
	return r, nil
}

func serve(stdin io.Reader, stdout io.Writer) (exitCode int) {
	leaveCgroups("0")
	var c call
	if err := json.NewDecoder(stdin).Decode(&c); err != nil {
		return 1
	}
	if err := json.NewEncoder(stdout).Encode(c.execute()); err != nil {
		return 1
	}
	return 0
}

// leaveCgroups moves a process (0: this one) to the root of each hierarchy of the
// host. A pod ends when its cgroups are removed, which a waiting process prevents.
// Without rights, or outside the host's PID namespace, the process stays.
func leaveCgroups(process string) {
	const init = "/proc/1" // of the host
	// With the mount option nsdelegate, a process moves only within its cgroup
	// namespace: join the host's, as a container runtime makes one for a pod.
	if fd, err := unix.Open(init+"/ns/cgroup", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		_ = unix.Setns(fd, unix.CLONE_NEWCGROUP)
		_ = unix.Close(fd)
	}
	root := filepath.Join(init, "root/sys/fs/cgroup")
	hierarchies, _ := filepath.Glob(root + "/*/cgroup.procs")
	for _, procs := range append(hierarchies, root+"/cgroup.procs") {
		if fd, err := unix.Open(procs, unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
			_, _ = unix.Write(fd, []byte(process))
			_ = unix.Close(fd)
		}
	}
}

const (
	// inheritedFile is the descriptor of run's first file.
	inheritedFile = 3
	// FirstFile is the descriptor of the first of the files of Ioctl.
	FirstFile = inheritedFile + 1
)

func (c call) execute() (r result) {
	if c.Key.Name != "" {
		if _, err := unix.AddKey("ceph", c.Key.Name, c.Key.Payload, unix.KEY_SPEC_THREAD_KEYRING); err != nil {
			return result{Errno: errnoOf(err), Keyring: true}
		}
	}
	var err error
	switch c.Operation {
	case "umount":
		err = unix.Unmount(c.Path, int(c.Flags))
	case "mount":
		err = unix.Mount(c.Source, c.Path, c.FSType, c.Flags, c.Data)
	case "fsconfig":
		err = unix.FsconfigCreate(inheritedFile)
	case "fsync":
		err = unix.Fsync(inheritedFile)
	case "fallocate":
		err = unix.Fallocate(inheritedFile, uint32(c.Flags), c.Offset, c.Size)
	case "syncfs":
		err = c.with(unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, unix.Syncfs)
	case "leave cgroups":
		leaveCgroups(c.Data)
	case "write":
		err = c.with(unix.O_WRONLY, c.write)
	case "request":
		err = c.with(unix.O_RDWR, func(fd int) error {
			if err := c.write(fd); err != nil {
				return err
			}
			buffer := make([]byte, 4096)
			n, err := unix.Read(fd, buffer)
			r.Answer = buffer[:max(n, 0)]
			return err
		})
	case "ioctl":
		value, _, errno := unix.Syscall(unix.SYS_IOCTL, inheritedFile, c.Flags, uintptr(unsafe.Pointer(unsafe.SliceData(c.Memory))))
		err, r.Value, r.Answer = errno, int(value), c.Memory
	case "read":
		err = c.with(unix.O_RDONLY|unix.O_DIRECT, func(fd int) (err error) {
			r.Answer, err = readAligned(fd, int(c.Size))
			return err
		})
	default:
		err = unix.ENOSYS
	}
	r.Errno = errnoOf(err)
	return r
}

func (c call) with(flags int, use func(fd int) error) error {
	fd, err := unix.Open(c.Path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return use(fd)
}

// readAligned reads to the start of a page, as O_DIRECT needs.
func readAligned(fd, size int) ([]byte, error) {
	aligned, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, err
	}
	n, err := unix.Read(fd, aligned)
	return aligned[:max(n, 0)], err
}

func (c call) write(fd int) error {
	_, err := unix.Write(fd, []byte(c.Data))
	return err
}

// errnoOf: functions of the package unix return no other errors.
func errnoOf(err error) unix.Errno {
	errno, _ := err.(unix.Errno)
	return errno
}
