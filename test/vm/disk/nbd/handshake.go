package nbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// handshake is the server's side of the negotiation ("Fixed newstyle
// negotiation"). The only export is the default one with an empty name.
type handshake struct {
	in       io.Reader
	out      io.Writer
	geometry Geometry
	noZeroes bool
}

// run negotiates. It reports whether the client enters the transmission phase;
// a client's abort is not an error.
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
		return false, fmt.Errorf("client flags %#x are not a subset of %#x", client, flagFixedNewstyle|flagNoZeroes)
	}
	h.noZeroes = client&flagNoZeroes != 0
	for {
		if end, transmission, err := h.option(); end || err != nil {
			return transmission, err
		}
	}
}

// option reads and answers one option.
func (h *handshake) option() (end, transmission bool, err error) {
	var header [16]byte
	if _, err := io.ReadFull(h.in, header[:]); err != nil {
		return false, false, fmt.Errorf("read an option: %w", err)
	}
	if magic := binary.BigEndian.Uint64(header[:]); magic != magicOption {
		return false, false, fmt.Errorf("option has magic %#x, want %#x", magic, magicOption)
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

// tooBig skips the data of an option that is too long.
func (h *handshake) tooBig(option, length uint32) error {
	if option == optExportName || length > maxSkipped { // EXPORT_NAME cannot be answered with an error
		return fmt.Errorf("option %d has %d bytes, at most %d are supported", option, length, maxOption)
	}
	if _, err := io.CopyN(io.Discard, h.in, int64(length)); err != nil {
		return fmt.Errorf("skip %d bytes of option %d: %w", length, option, err)
	}
	return h.reply(option, repErrTooBig, nil)
}

// exportName enters the transmission phase with the old option, which has no
// error replies: the connection is closed instead.
func (h *handshake) exportName(name []byte) error {
	if len(name) != 0 {
		return fmt.Errorf("unknown export %q; the only export has an empty name", name)
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
	if err := h.reply(optList, repServer, make([]byte, 4)); err != nil { // empty name
		return err
	}
	return h.reply(optList, repAck, nil)
}

// info describes the export. ok reports whether the option is valid and names
// the existing export.
func (h *handshake) info(option uint32, data []byte) (ok bool, err error) {
	name, err := parseInfo(data)
	if err != nil {
		return false, h.reply(option, repErrInvalid, []byte(err.Error()))
	}
	if name != "" {
		return false, h.reply(option, repErrUnknown, []byte("the only export has an empty name"))
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

// parseInfo parses the data of INFO and GO: a name and a list of information
// requests, which are ignored.
func parseInfo(data []byte) (name string, err error) {
	if len(data) < 6 {
		return "", fmt.Errorf("option data has %d bytes, want at least 6", len(data))
	}
	length := uint64(binary.BigEndian.Uint32(data))
	if length > uint64(len(data))-6 {
		return "", fmt.Errorf("name of %d bytes in %d bytes of data", length, len(data))
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
