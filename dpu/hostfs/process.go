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
var errNoAnswer = errors.New("no answer from the server")

// killGrace is how long a killed helper is waited for. What NFS waits for can be
// killed at once; Ceph and the end of an unmount may take longer.
const killGrace = 2 * time.Second

// order is what a helper is told, as one line of JSON on its standard input. It
// names files with keys, never a key. One of the pointers is set.
type order struct {
	Target  string        `json:"target"`
	NFS     *nfsOrder     `json:"nfs,omitempty"`
	CephFS  *cephOrder    `json:"cephfs,omitempty"`
	Unmount *unmountOrder `json:"unmount,omitempty"`
}

// answer is what a helper says at its end, on its standard output.
type answer struct {
	Text   string       `json:"text,omitempty"` // empty: done
	Kind   errs.Kind    `json:"kind,omitempty"`
	Errnos []unix.Errno `json:"errnos,omitempty"` // among the causes
	Busy   bool         `json:"busy,omitempty"`   // mount.ErrBusy is one
	// Said is for the log: what was done otherwise than asked.
	Said []string `json:"said,omitempty"`
}

// answerOf puts an error into words that the other side can sort.
func answerOf(err error) answer {
	if err == nil {
		return answer{}
	}
	a := answer{Text: err.Error(), Kind: errs.KindOf(err), Busy: errors.Is(err, mount.ErrBusy)}
	for _, e := range sortedErrnos() {
		if errors.Is(err, e) {
			a.Errnos = append(a.Errnos, e)
		}
	}
	return a
}

// sortedErrnos are those by which somebody decides.
func sortedErrnos() []unix.Errno {
	return []unix.Errno{
		unix.ENOENT, unix.EACCES, unix.EPERM, unix.EINVAL, unix.EBUSY, unix.ENOTDIR, unix.EIO, unix.EPROTONOSUPPORT, unix.ECONNREFUSED,
		unix.ECONNRESET, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ESTALE, unix.ENOKEY,
	}
}

// err is the error of the other side.
func (a answer) err() error {
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

// process is a helper. Its goroutine lasts as long as the process does: one that
// the kernel does not let go of, though it was killed, is remembered by Mounts.
type process struct {
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr tail
	done   chan struct{} // closed at its end; the rest may be read then
	err    error
}

// run has a helper carry out an order. errNoAnswer: it was killed after bound,
// and what it was about may have happened at the last moment.
func (m *Mounts) run(ctx context.Context, o order, bound time.Duration) error {
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
	_ = p.cmd.Process.Kill() // it may have ended by itself
	timer.Reset(killGrace)
	select {
	case <-p.done:
		if p.cmd.ProcessState.Exited() { // before it was killed
			return m.result(p)
		}
	case <-timer.C:
		if o.Unmount == nil { // the mount point of an unmount is free, or seen to be not
			m.mu.Lock()
			m.stuck[o.Target] = p
			m.mu.Unlock()
		}
		err = fmt.Errorf("%w; process %d hangs in the kernel although it was killed", err, p.cmd.Process.Pid)
	}
	return err
}

// start refuses while an earlier helper still hangs there: they would pile up.
func (m *Mounts) start(o order) (*process, error) {
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
			return nil, errs.Errorf(errs.Unavailable, "process %d of an earlier attempt at %s hangs in the kernel although it was killed: %w", before.cmd.Process.Pid, o.Target, errNoAnswer)
		}
	}
	line, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(m.config.Helper[0], m.config.Helper[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	// It stays open: its end tells the helper that this process is gone.
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the helper of a mount: %w", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	// A pipe takes that much at once. A helper that has ended before says why.
	_, _ = io.WriteString(stdin, string(line)+"\n")
	return p, nil
}

// result reads the answer of a helper that has ended.
func (m *Mounts) result(p *process) error {
	var a answer
	if err := json.Unmarshal(p.stdout.Bytes(), &a); err != nil {
		return fmt.Errorf("the helper of a mount ended without an answer (%v): %s", p.err, strings.TrimSpace(p.stderr.String()))
	}
	for _, text := range a.Said {
		m.log.Warn(text)
	}
	return a.err()
}

// tail keeps the last bytes that were written to it.
type tail struct{ bytes.Buffer }

func (t *tail) Write(b []byte) (int, error) {
	const most = 4 << 10
	n, err := t.Buffer.Write(b)
	if over := t.Len() - most; over > 0 {
		t.Next(over)
	}
	return n, err
}
