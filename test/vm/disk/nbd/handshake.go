package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// handshake is the server's side of the negotiation ("Fixed newstyle
// negotiation"). There is one export, the default one, whose name is empty.
type handshake struct {
	in       io.Reader
	out      io.Writer
	geometry Geometry
	noZeroes bool
}

// run goes through the negotiation. It returns whether the client goes on to
// the transmission phase; a client that aborts is no error.
func (h *handshake) run() (bool, error) {
	hello := binary.BigEndian.AppendUint64(nil, magicInit)
	hello = binary.BigEndian.AppendUint64(hello, magicOption)
	hello = binary.BigEndian.AppendUint16(hello, flagFixedNewstyle|flagNoZeroes)
	if _, err := h.out.Write(hello); err != nil {
		return false, err
	}
	var flags [4]byte
	if _, err := io.ReadFull(h.in, flags[:]); err != nil {
		return false, fmt.Errorf("read the client's flags: %w", err)
	}
	client := binary.BigEndian.Uint32(flags[:])
	if client&^uint32(flagFixedNewstyle|flagNoZeroes) != 0 {
		return false, fmt.Errorf("the client sets flags %#x, of which only %#x were offered", client, flagFixedNewstyle|flagNoZeroes)
	}
	h.noZeroes = client&flagNoZeroes != 0
	for {
		if end, transmission, err := h.option(); end || err != nil {
			return transmission, err
		}
	}
}

// option takes and answers one option.
func (h *handshake) option() (end, transmission bool, err error) {
	var header [16]byte
	if _, err := io.ReadFull(h.in, header[:]); err != nil {
		return false, false, fmt.Errorf("read an option: %w", err)
	}
	if magic := binary.BigEndian.Uint64(header[:]); magic != magicOption {
		return false, false, fmt.Errorf("an option begins with %#x, not with %#x", magic, magicOption)
	}
	option, length := binary.BigEndian.Uint32(header[8:]), binary.BigEndian.Uint32(header[12:])
	if length > maxOption {
		return false, false, h.tooBig(option, length)
	}
	data := make([]byte, length)
	if _, err := io.ReadFull(h.in, data); err != nil {
		return false, false, fmt.Errorf("read %d bytes of option %d: %w", length, option, err)
	}
	switch option {
	case optExportName:
		return true, true, h.exportName(data)
	case optAbort:
		return true, false, h.reply(option, repAck, nil)
	case optList:
		return false, false, h.list(data)
	case optInfo, optGo:
		ok, err := h.info(option, data)
		return ok && option == optGo, ok && option == optGo, err
	}
	return false, false, h.reply(option, repErrUnsupported, nil)
}

// tooBig reads past the data of an option that is too long.
func (h *handshake) tooBig(option, length uint32) error {
	if option == optExportName || length > maxSkipped { // the former has no way to answer an error
		return fmt.Errorf("option %d has %d bytes, at most %d are understood", option, length, maxOption)
	}
	if _, err := io.CopyN(io.Discard, h.in, int64(length)); err != nil {
		return fmt.Errorf("read past %d bytes of option %d: %w", length, option, err)
	}
	return h.reply(option, repErrTooBig, nil)
}

// exportName enters the transmission phase in the old way, which has no
// errors: the connection is closed instead.
func (h *handshake) exportName(name []byte) error {
	if len(name) != 0 {
		return fmt.Errorf("the client wants export %q; there is only the default one, whose name is empty", name)
	}
	answer := binary.BigEndian.AppendUint64(nil, uint64(h.geometry.Size))
	answer = binary.BigEndian.AppendUint16(answer, transmissionFlags)
	if !h.noZeroes {
		answer = append(answer, make([]byte, 124)...)
	}
	_, err := h.out.Write(answer)
	return err
}

func (h *handshake) list(data []byte) error {
	if len(data) != 0 {
		return h.reply(optList, repErrInvalid, nil)
	}
	if err := h.reply(optList, repServer, make([]byte, 4)); err != nil { // a name of length 0
		return err
	}
	return h.reply(optList, repAck, nil)
}

// info describes the export; ok is whether the client asked for one that is
// there, in an option that is well formed.
func (h *handshake) info(option uint32, data []byte) (ok bool, err error) {
	name, err := parseInfo(data)
	if err != nil {
		return false, h.reply(option, repErrInvalid, []byte(err.Error()))
	}
	if name != "" {
		return false, h.reply(option, repErrUnknown, []byte("there is only the default export, whose name is empty"))
	}
	export := binary.BigEndian.AppendUint16(nil, infoExport)
	export = binary.BigEndian.AppendUint64(export, uint64(h.geometry.Size))
	export = binary.BigEndian.AppendUint16(export, transmissionFlags)
	sizes := binary.BigEndian.AppendUint16(nil, infoBlockSize)
	sizes = binary.BigEndian.AppendUint32(sizes, h.geometry.Sector)
	sizes = binary.BigEndian.AppendUint32(sizes, h.geometry.Block)
	sizes = binary.BigEndian.AppendUint32(sizes, MaxPayload)
	return true, errors.Join(h.reply(option, repInfo, export), h.reply(option, repInfo, sizes), h.reply(option, repAck, nil))
}

// parseInfo takes the data of INFO and GO apart: a name, and a list of
// information requests, which may be ignored.
func parseInfo(data []byte) (name string, err error) {
	if len(data) < 6 {
		return "", fmt.Errorf("%d bytes of data, at least 6 are needed", len(data))
	}
	length := uint64(binary.BigEndian.Uint32(data))
	if length > uint64(len(data))-6 {
		return "", fmt.Errorf("a name of %d bytes in %d bytes of data", length, len(data))
	}
	rest := data[4+length:]
	wanted := int(binary.BigEndian.Uint16(rest))
	if len(rest) != 2+2*wanted {
		return "", fmt.Errorf("%d information requests in %d bytes", wanted, len(rest)-2)
	}
	return string(data[4 : 4+length]), nil
}

func (h *handshake) reply(option, kind uint32, data []byte) error {
	message := binary.BigEndian.AppendUint64(nil, magicReply)
	message = binary.BigEndian.AppendUint32(message, option)
	message = binary.BigEndian.AppendUint32(message, kind)
	message = binary.BigEndian.AppendUint32(message, uint32(len(data)))
	_, err := h.out.Write(append(message, data...))
	return err
}
