package nbd

import (
	"encoding/binary"
	"fmt"
	"io"
)

// headerSize is the length of a request without its data ("Request message").
const headerSize = 28

func parseRequest(header *[headerSize]byte) (Request, error) {
	if magic := binary.BigEndian.Uint32(header[:]); magic != magicRequest {
		return Request{}, fmt.Errorf("request has magic %#x, want %#x", magic, magicRequest)
	}
	r := Request{
		flags:   binary.BigEndian.Uint16(header[4:]),
		Command: Command(binary.BigEndian.Uint16(header[6:])),
		cookie:  binary.BigEndian.Uint64(header[8:]),
		Offset:  binary.BigEndian.Uint64(header[16:]),
		Length:  binary.BigEndian.Uint32(header[24:]),
	}
	r.FUA = r.flags&flagFUA != 0
	r.NoHole = r.flags&flagNoHole != 0
	return r, nil
}

// check validates a request against the protocol ("Error values", "Size
// constraints").
func check(r Request, g Geometry) Errno {
	known := uint16(flagFUA) // "the server MUST accept all commands with this bit set"
	beyond := EINVAL
	switch r.Command {
	case Flush:
		if r.Offset != 0 || r.Length != 0 || r.flags&^known != 0 {
			return EINVAL
		}
		return OK
	case Read, Trim:
	case Write:
		beyond = ENOSPC
	case WriteZeroes:
		beyond = ENOSPC
		known |= flagNoHole
	default:
		return EINVAL
	}
	size := uint64(g.Size)
	switch {
	case r.flags&^known != 0:
		return EINVAL
	case (r.Command == Read || r.Command == Write) && r.Length > MaxPayload:
		return EINVAL
	case r.Offset > size || uint64(r.Length) > size-r.Offset:
		return beyond
	case r.Length == 0 || r.Offset%uint64(g.Sector) != 0 || r.Length%g.Sector != 0:
		return EINVAL
	}
	return OK
}

// readRequest reads one request with its data. The data of an invalid request
// is skipped. io.EOF means that the client disconnected between requests.
func readRequest(in io.Reader, d Device) (Request, error) {
	var header [headerSize]byte
	if _, err := io.ReadFull(in, header[:]); err == io.EOF {
		return Request{}, err
	} else if err != nil {
		return Request{}, fmt.Errorf("read a request: %w", err)
	}
	r, err := parseRequest(&header)
	if err != nil {
		return Request{}, err
	}
	r.Mark = d.Mark()
	r.refused = check(r, d.Geometry())
	if r.Command != Write {
		return r, nil
	}
	if r.Length > maxSkipped {
		return Request{}, fmt.Errorf("write of %d bytes, at most %d are supported", r.Length, MaxPayload)
	}
	if r.refused != OK {
		_, err = io.CopyN(io.Discard, in, int64(r.Length))
	} else {
		r.Data = make([]byte, r.Length)
		_, err = io.ReadFull(in, r.Data)
	}
	if err != nil {
		return Request{}, fmt.Errorf("read %d bytes of write data: %w", r.Length, err)
	}
	return r, nil
}
