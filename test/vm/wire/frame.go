package wire

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
)

// Kind is what a frame carries.
type Kind byte

// The frames of exec. From the agent: Started once, then Stdout and Stderr, at
// last Exit; or Fault alone when the process could not be started. From the
// host: Stdin, StdinEnd, Signal.
const (
	Started  Kind = 1 // JSON of Start
	Stdout   Kind = 2
	Stderr   Kind = 3
	Exit     Kind = 4 // JSON of Status
	Fault    Kind = 5 // text
	Stdin    Kind = 6
	StdinEnd Kind = 7
	Signal   Kind = 8 // one byte: the signal's number, sent to the process group
)

// MaxFrame bounds the payload of a frame in bytes.
const MaxFrame = 64 << 10

// Start says which process was started.
type Start struct {
	PID int `json:"pid"`
}

// Status is how a process ended: its exit code, or the signal that ended it.
type Status struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`
}

// Frame is one piece of the conversation about a process: a byte of kind, four
// bytes of length (big endian), the payload.
type Frame struct {
	Kind    Kind
	Payload []byte
}

// ReadFrame takes one frame.
func ReadFrame(r io.Reader) (Frame, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(head[0])}
	size := binary.BigEndian.Uint32(head[1:])
	if f.Kind < Started || f.Kind > Signal {
		return Frame{}, fmt.Errorf("a frame of the unknown kind %d", f.Kind)
	}
	if size > MaxFrame {
		return Frame{}, fmt.Errorf("a frame of %d bytes; %d is the most", size, MaxFrame)
	}
	f.Payload = make([]byte, size)
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		return Frame{}, fmt.Errorf("a frame of %d bytes was cut off: %w", size, err)
	}
	return f, nil
}

// Frames writes frames to one connection, from any number of goroutines.
type Frames struct {
	mu sync.Mutex
	w  io.Writer
}

// NewFrames writes to w.
func NewFrames(w io.Writer) *Frames { return &Frames{w: w} }

// Send writes one frame.
func (f *Frames) Send(kind Kind, payload []byte) error {
	if len(payload) > MaxFrame {
		return fmt.Errorf("a frame of %d bytes; %d is the most", len(payload), MaxFrame)
	}
	head := make([]byte, 5, 5+len(payload))
	head[0] = byte(kind)
	binary.BigEndian.PutUint32(head[1:], uint32(len(payload)))
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.w.Write(append(head, payload...))
	return err
}

// Stream is a writer whose bytes become frames of one kind.
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
