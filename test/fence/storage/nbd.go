package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/test/fence/rig"
)

// NBDPort is the port assigned by IANA.
const NBDPort = 10809

// Disk is a server that exports one disk.
type Disk struct {
	*rig.Process
	Path string // the backing file, which tests read directly
}

// StartNBD starts Debian's nbd-server, which daemonizes and has a process for
// each client.
func StartNBD(m *rig.Machine) (*Disk, error) {
	d := &Disk{Path: filepath.Join(m.Dir, "nbd.disk")}
	config := filepath.Join(m.Dir, "nbd.conf")
	text := fmt.Sprintf("[generic]\nport = %d\n[disk]\nexportname = %s\n", NBDPort, d.Path)
	if err := errors.Join(makeDisk(d.Path), os.WriteFile(config, []byte(text), 0o600)); err != nil {
		return nil, err
	}
	var err error
	if d.Process, err = m.Launch("nbd-server", nil, "nbd-server", "-C", config); err != nil {
		return nil, err
	}
	ctx, cancel := bounded()
	defer cancel()
	if err := m.WaitFor(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), NBDPort)); err != nil {
		return nil, fmt.Errorf("%w: %s", err, d.Log())
	}
	return d, nil
}

// Constants of the protocol:
// https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md
const (
	nbdMagic        = 0x4e42444d41474943 // NBDMAGIC
	nbdOption       = 0x49484156454f5054 // IHAVEOPT
	nbdFixed        = 1                  // flag: newstyle negotiation without holes
	nbdNoZeroes     = 2                  // flag: no padding after the export's flags
	nbdExportName   = 1                  // option
	nbdRequest      = 0x25609513
	nbdReply        = 0x67446698
	nbdCommandWrite = 1
)

type nbdSession struct {
	net.Conn
	id uint64
}

// NBDSession opens a session with an NBD server.
func NBDSession(id uint64, conn net.Conn) (Session, error) {
	var hello struct {
		Magic, Option uint64
		Flags         uint16
	}
	if err := binary.Read(conn, binary.BigEndian, &hello); err != nil {
		return nil, err
	}
	if hello.Magic != nbdMagic || hello.Option != nbdOption || hello.Flags&(nbdFixed|nbdNoZeroes) != nbdFixed|nbdNoZeroes {
		return nil, fmt.Errorf("not a newstyle NBD server: %#v", hello)
	}
	const name = "disk"
	ask := struct {
		Flags       uint32
		Magic       uint64
		Option, Len uint32
		Name        [len(name)]byte
	}{nbdFixed | nbdNoZeroes, nbdOption, nbdExportName, uint32(len(name)), [len(name)]byte([]byte(name))}
	if err := binary.Write(conn, binary.BigEndian, ask); err != nil {
		return nil, err
	}
	var export struct {
		Size  uint64
		Flags uint16
	}
	if err := binary.Read(conn, binary.BigEndian, &export); err != nil {
		return nil, err
	}
	if export.Size != DiskSize {
		return nil, fmt.Errorf("the export has %d bytes, not %d", export.Size, DiskSize)
	}
	return nbdSession{conn, id}, nil
}

func (s nbdSession) Send(number uint64) error {
	at, data := block(s.id, number)
	head := struct {
		Magic          uint32
		Flags, Type    uint16
		Handle, Offset uint64
		Len            uint32
		Data           [blockSize]byte
	}{nbdRequest, 0, nbdCommandWrite, number, at * blockSize, blockSize, [blockSize]byte(data)}
	request, err := binary.Append(nil, binary.BigEndian, head)
	if err != nil {
		return err
	}
	_, err = s.Write(request)
	return err
}

func (s nbdSession) Acknowledged() (uint64, error) {
	var reply [16]byte
	if _, err := io.ReadFull(s, reply[:]); err != nil {
		return 0, err
	}
	if magic, problem := binary.BigEndian.Uint32(reply[:]), binary.BigEndian.Uint32(reply[4:]); magic != nbdReply || problem != 0 {
		return 0, fmt.Errorf("the NBD server answers %#x, error %d", magic, problem)
	}
	return binary.BigEndian.Uint64(reply[8:]), nil
}
