package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Kind is the type of a frame.
type Kind byte

// The frames of exec. Agent to host: Started, any number of Stdout and Stderr,
// then Exit; or only Fault if the process could not be started. Host to agent:
// Stdin, StdinEnd, Signal.
const (
	Started  Kind = 1 // JSON of Start
	Stdout   Kind = 2
	Stderr   Kind = 3
	Exit     Kind = 4 // JSON of Status
	Fault    Kind = 5 // text
	Stdin    Kind = 6
	StdinEnd Kind = 7
	Signal   Kind = 8 // one byte: signal number, for the process group
)

// MaxFrame is the maximum payload of a frame in bytes.
const MaxFrame = 64 << 10

// Start reports the started process.
type Start struct {
	PID int `json:"pid"`
}

// Status is a process's exit code, or the signal that ended it.
type Status struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`
}

// Frame is encoded as one byte of kind, four bytes of length (big endian) and
// the payload.
type Frame struct {
	Kind    Kind
	Payload []byte
}

func ReadFrame(r io.Reader) (Frame, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(head[0])}
	size := binary.BigEndian.Uint32(head[1:])
	if f.Kind < Started || f.Kind > Signal {
		return Frame{}, fmt.Errorf("frame has unknown kind %d", f.Kind)
	}
	if size > MaxFrame {
		return Frame{}, fmt.Errorf("frame has %d bytes, at most %d are allowed", size, MaxFrame)
	}
	f.Payload = make([]byte, size)
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		return Frame{}, fmt.Errorf("truncated frame of %d bytes: %w", size, err)
	}
	return f, nil
}

// Frames writes frames to one connection. It is safe for concurrent use.
type Frames struct {
	mu sync.Mutex
	w  io.Writer
}

func NewFrames(w io.Writer) *Frames { return &Frames{w: w} }

// Send writes one frame.
func (f *Frames) Send(kind Kind, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("frame has %d bytes, at most %d are allowed", len(payload), MaxFrame)
	}
	head := make([]byte, 5, 5+len(payload))
	head[0] = byte(kind)
	binary.BigEndian.PutUint32(head[1:], uint32(len(payload)))
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.w.Write(append(head, payload...))
	return err
}

// Stream returns a writer that sends frames of one kind.
func (f *Frames) Stream(kind Kind) io.Writer { return stream{f, kind} }

type stream struct {
	frames *Frames
	kind   Kind
}

func (s stream) Write(p []byte) (int, error) {
	for n := 0; n < len(p); n += MaxFrame {
		if err := s.frames.Send(s.kind, p[n:min(n+MaxFrame, len(p))]); err != nil {
			return n, err
		}
	}
	return len(p), nil
}
