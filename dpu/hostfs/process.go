package hostfs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// errNoAnswer: a helper was killed at its deadline.
var errNoAnswer = errors.New("no response from the server")

// killGrace is the wait for a killed helper. NFS waits are killable; Ceph and
// the end of an unmount can take longer.
const killGrace = 2 * time.Second

// helperRequest is a request to a helper, a line of JSON on standard input, without
// secrets. Exactly one of NFS, CephFS and Unmount is set.
type helperRequest struct {
	Target  string          `json:"target"`
	NFS     *nfsMount       `json:"nfs,omitempty"`
	CephFS  *cephMount      `json:"cephfs,omitempty"`
	Unmount *unmountRequest `json:"unmount,omitempty"`
}

// helperResponse is the response of a helper, on its standard output.
type helperResponse struct {
	Text   string       `json:"text,omitempty"` // empty: success
	Kind   errs.Kind    `json:"kind,omitempty"`
	Errnos []unix.Errno `json:"errnos,omitempty"`
	Busy   bool         `json:"busy,omitempty"`
	// Warnings are warnings to log.
	Warnings []string `json:"said,omitempty"`
}

func responseOf(err error) helperResponse {
	if err == nil {
		return helperResponse{}
	}
	a := helperResponse{Text: err.Error(), Kind: errs.KindOf(err), Busy: errors.Is(err, mount.ErrBusy)}
	for _, e := range sortedErrnos() {
		if errors.Is(err, e) {
			a.Errnos = append(a.Errnos, e)
		}
	}
	return a
}

// sortedErrnos are the errnos that callers check for.
func sortedErrnos() []unix.Errno {
	return []unix.Errno{
		unix.ENOENT, unix.EACCES, unix.EPERM, unix.EINVAL, unix.EBUSY, unix.ENOTDIR, unix.EIO, unix.EPROTONOSUPPORT, unix.ECONNREFUSED,
		unix.ECONNRESET, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ESTALE, unix.ENOKEY,
	}
}

func (a helperResponse) err() error {
	if a.Text == "" {
		return nil
	}
	e := &remoteError{text: a.Text, causes: []error{a.Kind}}
	if a.Busy {
		e.causes = append(e.causes, mount.ErrBusy)
	}
	for _, n := range a.Errnos {
		e.causes = append(e.causes, n)
	}
	return errs.Errorf(a.Kind, "%w", e)
}

type remoteError struct {
	text   string
	causes []error
}

func (e *remoteError) Error() string { return e.text }

func (e *remoteError) Unwrap() []error { return e.causes }

// process is a helper. Mounts.stuck has killed helpers that hang in the kernel.
type process struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr tail
	done   chan struct{} // closed at the end of the process, before which the other fields must not be read
	err    error
}

// run executes a request in a helper. errNoAnswer: the helper was killed after
// bound, but its last system call can still have succeeded.
func (m *Mounts) run(ctx context.Context, o helperRequest, bound time.Duration) error {
	p, err := m.start(o)
	if err != nil {
		return err
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-p.done:
		return m.result(p)
	case <-ctx.Done():
		err = fmt.Errorf("%w: %w", errNoAnswer, ctx.Err())
	case <-timer.C:
		err = errs.Errorf(errs.Unavailable, "%w within %v", errNoAnswer, bound)
	}
	_ = p.cmd.Process.Kill() // fails if the process has already ended
	timer.Reset(killGrace)
	select {
	case <-p.done:
		if p.cmd.ProcessState.Exited() { // before it was killed
			return m.result(p)
		}
	case <-timer.C:
		if o.Unmount == nil { // for an unmount, the mount table shows the result
			m.mu.Lock()
			m.stuck[o.Target] = p
			m.mu.Unlock()
		}
		err = fmt.Errorf("%w; killed process %d hangs in the kernel", err, p.cmd.Process.Pid)
	}
	return err
}

// start fails while an earlier helper for the target hangs, so that they cannot
// accumulate.
func (m *Mounts) start(o helperRequest) (*process, error) {
	m.mu.Lock()
	before := m.stuck[o.Target]
	m.mu.Unlock()
	if before != nil && o.Unmount == nil {
		select {
		case <-before.done:
			m.mu.Lock()
			delete(m.stuck, o.Target)
			m.mu.Unlock()
		default:
			return nil, errs.Errorf(errs.Unavailable, "killed process %d of an earlier attempt at %s hangs in the kernel: %w", before.cmd.Process.Pid, o.Target, errNoAnswer)
		}
	}
	line, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(m.config.Helper[0], m.config.Helper[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	// stdin stays open: so the helper exits with this process.
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the mount helper: %w", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	// The request fits into the pipe's buffer. result reports the error of a
	// helper that has exited.
	_, _ = io.WriteString(stdin, string(line)+"\n")
	return p, nil
}

func (m *Mounts) result(p *process) error {
	var a helperResponse
	if err := json.Unmarshal(p.stdout.Bytes(), &a); err != nil {
		return fmt.Errorf("the mount helper ended without a response (%v): %s", p.err, strings.TrimSpace(p.stderr.String()))
	}
	for _, text := range a.Warnings {
		m.log.Warn("mount completed with warning", "reason", text)
	}
	return a.err()
}

// tail keeps the last bytes written.
type tail struct{ bytes.Buffer }

func (t *tail) Write(b []byte) (int, error) {
	const most = 4 << 10
	n, err := t.Buffer.Write(b)
	if over := t.Len() - most; over > 0 {
		t.Next(over)
	}
	return n, err
}
