package inotify

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// parse appends the events in what read(2) returned: a head of 16 bytes each,
// in the machine's order, and a name that is filled up with NULs.
func parse(events []Event, buf []byte) ([]Event, error) {
	for len(buf) > 0 {
		if len(buf) < unix.SizeofInotifyEvent {
			return events, fmt.Errorf("inotify: %d bytes are left where an event of at least %d should be", len(buf), unix.SizeofInotifyEvent)
		}
		e := Event{
			Watch:  Watch(binary.NativeEndian.Uint32(buf)),
			Mask:   binary.NativeEndian.Uint32(buf[4:]),
			Cookie: binary.NativeEndian.Uint32(buf[8:]),
		}
		size := uint64(binary.NativeEndian.Uint32(buf[12:]))
		buf = buf[unix.SizeofInotifyEvent:]
		if size > uint64(len(buf)) {
			return events, fmt.Errorf("inotify: an event announces a name of %d bytes, and %d are left", size, len(buf))
		}
		name, _, _ := bytes.Cut(buf[:size], []byte{0})
		e.Name = string(name)
		buf = buf[size:]
		events = append(events, e)
	}
	return events, nil
}
