package freeze

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// Guard starts guard processes and keeps one in reserve, since the start takes
// longer than most freezes.
type Guard struct {
	command []string

	mu       sync.Mutex
	reserve  *process
	isClosed bool
}

// NewGuard returns a Guard whose processes run command, which must call
// RunGuard early. {"/proc/self/exe", "freeze-guard"} is the running program,
// even if its file was replaced.
func NewGuard(command ...string) *Guard { return &Guard{command: command} }

// Prepare starts the reserve process.
func (g *Guard) Prepare() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isClosed || g.reserve != nil || len(g.command) == 0 {
		return nil
	}
	p, err := g.start()
	if err == nil {
		g.reserve = p
	}
	return err
}

// Close ends the reserve process; freezes in progress keep their guards.
func (g *Guard) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isClosed = true
	if g.reserve != nil {
		g.reserve.end()
		g.reserve = nil
	}
}

func (g *Guard) request(o request, roots []*os.File) (*process, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.reserve; p != nil {
		g.reserve = nil
		if p.send(o, roots) == nil {
			return p, nil
		}
		p.end()
	}
	p, err := g.start()
	if err != nil {
		return nil, err
	}
	_ = p.send(o, roots) // on failure the process has died: watch reports how
	return p, nil
}

type process struct {
	cmd     *exec.Cmd
	control *net.UnixConn // carries the request; closing it requests the thaw
	reports *os.File
}

func (g *Guard) start() (*process, error) {
	control, theirs, err := controlPair()
	if err != nil {
		return nil, errs.Errorf(errs.Internal, "start the freeze guard: %w", err)
	}
	defer theirs.Close()
	reports, stdout, err := os.Pipe()
	if err != nil {
		control.Close()
		return nil, errs.Errorf(errs.Internal, "start the freeze guard: %w", err)
	}
	defer stdout.Close()
	cmd := exec.Command(g.command[0], g.command[1:]...)
	cmd.Stdin, cmd.Stdout = theirs, stdout
	// No stderr: it can be a file on a frozen file system. GOGC=off: the guard
	// allocates too little to need garbage collection.
	cmd.Env, cmd.Dir = []string{"GOGC=off"}, "/"
	// Signals for the parent's group or terminal do not reach the guard.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		control.Close()
		reports.Close()
		return nil, errs.Errorf(errs.Internal, "start the freeze guard %q: %w", g.command, err)
	}
	return &process{cmd: cmd, control: control, reports: reports}, nil
}

func (p *process) end() {
	p.control.Close()
	p.cmd.Process.Kill()
	p.cmd.Wait()
	p.reports.Close()
}

func controlPair() (ours *net.UnixConn, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs = os.NewFile(uintptr(pair[1]), "freeze guard")
	if ours, err = controlOf(os.NewFile(uintptr(pair[0]), "freeze guard")); err != nil {
		theirs.Close()
	}
	return ours, theirs, err
}

func controlOf(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	if c, ok := conn.(*net.UnixConn); ok {
		return c, nil
	}
	conn.Close()
	return nil, errors.New("not a UNIX socket")
}

// filesPerMessage is below the kernel's limit of files in one message (SCM_MAX_FD).
const filesPerMessage = 250

// send passes the files as ancillary data; each message carries at least one
// line.
func (p *process) send(o request, roots []*os.File) error {
	line := o.String()
	for len(roots) > 0 {
		n := min(len(roots), filesPerMessage)
		descriptors := make([]int, n)
		for i, r := range roots[:n] {
			descriptors[i] = int(r.Fd())
		}
		if _, _, err := p.control.WriteMsgUnix([]byte(line), unix.UnixRights(descriptors...), nil); err != nil {
			return err
		}
		roots, line = roots[n:], "\n"
	}
	return nil
}

func receiveRequest(control *net.UnixConn) (request, []*os.File, error) {
	var o request
	var roots []*os.File
	for {
		text, rights := make([]byte, 64), make([]byte, unix.CmsgSpace(4*filesPerMessage))
		n, rightsLen, _, _, err := control.ReadMsgUnix(text, rights)
		if err != nil {
			return request{}, nil, err
		}
		if o.members == 0 { // the first message has the whole line: messages with files are not merged
			if o, err = parseRequest(string(text[:n])); err != nil {
				return request{}, nil, err
			}
		}
		messages, err := unix.ParseSocketControlMessage(rights[:rightsLen])
		if err != nil {
			return request{}, nil, err
		}
		for _, m := range messages {
			descriptors, err := unix.ParseUnixRights(&m)
			if err != nil {
				return request{}, nil, err
			}
			for _, d := range descriptors {
				roots = append(roots, os.NewFile(uintptr(d), "member"))
			}
		}
		if len(roots) >= o.members {
			return o, roots, nil
		}
	}
}
