// Package wire is the protocol between a test on the host and the agent in its
// guest. The agent keeps idle connections to the host, each opened with a
// Hello. The host uses one connection per request:
//
//	agent  Hello, one line of JSON
//	host   Request, one line of JSON
//	exec   frames both ways (see Frame) until an Exit or a Fault
//	dial   Reply, one line of JSON, then the bytes of the dialled connection
//	push   file contents from the host, then a Reply
//	pull   Reply with the file's size, then its contents
//	halt   Reply, then the guest powers off
//
// Either side ends the request by closing the connection. Closing ends the
// process of an exec.
package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
)

// Version is the protocol version; both sides must have the same.
const Version = 1

// MaxLine is the maximum length of a line of JSON in bytes.
const MaxLine = 1 << 20

// Hello is the agent's first line on a connection.
type Hello struct {
	Version int    `json:"version"`
	Token   string `json:"token"`
	// Fault is set if the guest's setup failed; the agent then serves nothing.
	Fault string `json:"fault,omitempty"`
}

// Check verifies the version, the token and that the guest has no fault.
func (h Hello) Check(token string) error {
	switch {
	case h.Version != Version:
		return fmt.Errorf("the guest's agent has protocol version %d, this test %d; build both from the same tree", h.Version, Version)
	case h.Token != token:
		return errors.New("the connection's token is not that of this guest")
	case h.Fault != "":
		return fmt.Errorf("guest setup failed: %s", h.Fault)
	}
	return nil
}

// Op is the operation of a request.
type Op string

// The requests.
const (
	OpExec Op = "exec"
	OpDial Op = "dial"
	OpPush Op = "push"
	OpPull Op = "pull"
	OpHalt Op = "halt"
)

// Request is a request of the host. Only the field that Op names is set; halt
// has no field.
type Request struct {
	Op   Op    `json:"op"`
	Exec *Exec `json:"exec,omitempty"`
	Dial *Dial `json:"dial,omitempty"`
	Push *Push `json:"push,omitempty"`
	Pull *Pull `json:"pull,omitempty"`
}

// Exec starts a process in a new process group.
type Exec struct {
	Argv []string `json:"argv"`          // Argv[0] without a slash is looked up in PATH
	Env  []string `json:"env,omitempty"` // NAME=value, added to the agent's environment
	Dir  string   `json:"dir,omitempty"` // absolute; empty is /
}

// Dial connects to a socket in the guest.
type Dial struct {
	Network string `json:"network"` // unix or tcp
	Address string `json:"address"`
}

// Push writes a file atomically and creates its parent directories.
type Push struct {
	Path string `json:"path"` // absolute
	Mode uint32 `json:"mode"` // permission bits
	Size int64  `json:"size"` // bytes that follow
}

// Pull reads a file.
type Pull struct {
	Path string `json:"path"` // absolute
}

// Reply answers dial, push, pull and halt.
type Reply struct {
	Error string `json:"error,omitempty"`
	Size  int64  `json:"size,omitempty"` // of pull: bytes that follow
}

// Err returns the agent's error.
func (r Reply) Err() error {
	if r.Error == "" {
		return nil
	}
	return errors.New(r.Error)
}

// Check validates a request.
func (r Request) Check() error {
	parts := 0
	for _, set := range []bool{r.Exec != nil, r.Dial != nil, r.Push != nil, r.Pull != nil} {
		if set {
			parts++
		}
	}
	part := map[Op]bool{OpExec: r.Exec != nil, OpDial: r.Dial != nil, OpPush: r.Push != nil, OpPull: r.Pull != nil, OpHalt: parts == 0}
	want := 1
	if r.Op == OpHalt {
		want = 0
	}
	fits, known := part[r.Op]
	switch {
	case !known:
		return fmt.Errorf("operation %q is not one of exec, dial, push, pull, halt", r.Op)
	case !fits || parts != want:
		return fmt.Errorf("request %s has %d parts, want only its own", r.Op, parts)
	case r.Exec != nil:
		return r.Exec.check()
	case r.Dial != nil:
		return r.Dial.check()
	case r.Push != nil:
		return r.Push.check()
	case r.Pull != nil:
		return checkPath(r.Pull.Path)
	}
	return nil
}

func (e Exec) check() error {
	if len(e.Argv) == 0 || e.Argv[0] == "" {
		return errors.New("exec names no program")
	}
	for _, s := range append(e.Argv[:len(e.Argv):len(e.Argv)], e.Env...) {
		if strings.ContainsRune(s, 0) {
			return fmt.Errorf("%q contains a NUL byte", s)
		}
	}
	for _, s := range e.Env {
		if name, _, found := strings.Cut(s, "="); !found || name == "" {
			return fmt.Errorf("environment variable %q is not NAME=value", s)
		}
	}
	if e.Dir == "" {
		return nil
	}
	return checkPath(e.Dir)
}

func (d Dial) check() error {
	if d.Network != "unix" && d.Network != "tcp" {
		return fmt.Errorf("network %q is neither unix nor tcp", d.Network)
	}
	if d.Address == "" {
		return errors.New("dial names no address")
	}
	return nil
}

func (p Push) check() error {
	if p.Mode&^0o777 != 0 {
		return fmt.Errorf("mode %#o has more than permission bits", p.Mode)
	}
	if p.Size < 0 {
		return fmt.Errorf("file size %d is negative", p.Size)
	}
	return checkPath(p.Path)
}

func checkPath(p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || strings.ContainsRune(p, 0) {
		return fmt.Errorf("path %q is not absolute and clean", p)
	}
	return nil
}

// Write writes one line of JSON.
func Write(w io.Writer, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(line) >= MaxLine {
		return fmt.Errorf("line has %d bytes, at most %d are allowed", len(line), MaxLine)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// Read reads one line of JSON and rejects unknown fields.
func Read(r *bufio.Reader, v any) error {
	line, err := readLine(r)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("invalid line: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("line has more than one value")
	}
	return nil
}

// ReadRequest reads and validates one request.
func ReadRequest(r *bufio.Reader) (Request, error) {
	var q Request
	if err := Read(r, &q); err != nil {
		return Request{}, err
	}
	return q, q.Check()
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > MaxLine:
			return nil, fmt.Errorf("line has more than %d bytes", MaxLine)
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
