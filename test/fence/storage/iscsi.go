package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cleatproject/cleat/test/fence/rig"
)

// ISCSIPort is the port assigned by IANA.
const ISCSIPort = 3260

const (
	iscsiTarget    = "iqn.2026-01.dev.cleat.test:disk"
	iscsiInitiator = "iqn.2026-01.dev.cleat.test:writer"
)

// StartISCSI starts Debian's tgtd, one process for all clients.
func StartISCSI(m *rig.Machine) (*Disk, error) {
	d := &Disk{Path: filepath.Join(m.Dir, "iscsi.disk")}
	if err := makeDisk(d.Path); err != nil {
		return nil, err
	}
	control := []string{"TGT_IPC_SOCKET=" + filepath.Join(m.Dir, "tgtd")}
	var err error
	if d.Process, err = m.Launch("tgtd", control, "tgtd", "-f", "-C", "0", "--iscsi", fmt.Sprintf("portal=[::]:%d", ISCSIPort), "--iscsi", fmt.Sprintf("portal=0.0.0.0:%d", ISCSIPort)); err != nil {
		return nil, err
	}
	ctx, cancel := bounded()
	defer cancel()
	if err := m.WaitFor(ctx, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ISCSIPort)); err != nil {
		return nil, fmt.Errorf("%w: %s", err, d.Log())
	}
	for _, order := range []string{
		"--op new --mode target --tid 1 -T " + iscsiTarget,
		"--op new --mode logicalunit --tid 1 --lun 1 -b " + d.Path,
		"--op bind --mode target --tid 1 -I ALL",
	} {
		if err := administer(m, control, order); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func administer(m *rig.Machine, env []string, order string) error {
	p, err := m.Launch("tgtadm", env, append([]string{"tgtadm", "--lld", "iscsi"}, strings.Fields(order)...)...)
	if err != nil {
		return err
	}
	if status, err := p.Wait(time.Minute); err != nil || status != 0 {
		return fmt.Errorf("tgtadm %s: %#x, %w: %s", order, status, err, p.Log())
	}
	return nil
}

// Constants of the protocol: RFC 7143.
const (
	iscsiHeader        = 48
	opImmediate        = 0x40
	opLogin            = 0x03
	opLoginAnswer      = 0x23
	opCommand          = 0x01
	opCommandAnswer    = 0x21
	loginTransit       = 0x87 // from operational negotiation to full feature phase
	commandWrite       = 0xa1 // final, write, simple task
	scsiWrite10        = 0x2a
	scsiCheckCondition = 0x02
)

type iscsiSession struct {
	net.Conn
	id       uint64
	command  uint32 // CmdSN; only Send increments it
	expected atomic.Uint32
}

// ISCSISession logs in to an iSCSI target and clears the unit attention of the
// new session.
func ISCSISession(id uint64, conn net.Conn) (Session, error) {
	s := &iscsiSession{Conn: conn, id: id, command: 1}
	if err := s.login(); err != nil {
		return nil, err
	}
	for range 4 {
		if err := s.Send(0); err != nil {
			return nil, err
		}
		switch _, status, err := s.answer(); {
		case err != nil:
			return nil, err
		case status == 0:
			return s, nil
		case status != scsiCheckCondition:
			return nil, fmt.Errorf("the target answers status %#x", status)
		}
	}
	return nil, errors.New("the target keeps reporting unit attention")
}

func (s *iscsiSession) login() error {
	keys := []string{
		"InitiatorName=" + iscsiInitiator, "TargetName=" + iscsiTarget, "SessionType=Normal", "HeaderDigest=None", "DataDigest=None",
		"ImmediateData=Yes", "InitialR2T=No", "MaxRecvDataSegmentLength=8192", "MaxBurstLength=8192", "FirstBurstLength=8192", "ErrorRecoveryLevel=0",
	}
	text := []byte(strings.Join(keys, "\x00") + "\x00")
	head := make([]byte, iscsiHeader)
	head[0], head[1] = opLogin|opImmediate, loginTransit
	head[8] = 0x80                                     // ISID: random format
	binary.BigEndian.PutUint32(head[9:], uint32(s.id)) // and the 24-bit qualifier
	binary.BigEndian.PutUint32(head[24:], s.command)
	if err := s.write(head, text); err != nil {
		return err
	}
	answer, _, err := s.read()
	if err != nil {
		return err
	}
	if answer[0] != opLoginAnswer || answer[1]&0x80 == 0 || answer[36] != 0 {
		return fmt.Errorf("the target refuses the login: %x", answer)
	}
	return nil
}

// write sends a PDU, padding its data to words.
func (s *iscsiSession) write(head, data []byte) error {
	head[5], head[6], head[7] = byte(len(data)>>16), byte(len(data)>>8), byte(len(data))
	pdu := append(head, data...)
	for len(pdu)%4 != 0 {
		pdu = append(pdu, 0)
	}
	_, err := s.Write(pdu)
	return err
}

func (s *iscsiSession) read() (head, data []byte, err error) {
	head = make([]byte, iscsiHeader)
	if _, err := io.ReadFull(s, head); err != nil {
		return nil, nil, err
	}
	length := int(head[5])<<16 | int(head[6])<<8 | int(head[7])
	data = make([]byte, int(head[4])*4+(length+3)/4*4)
	_, err = io.ReadFull(s, data)
	s.expected.Store(binary.BigEndian.Uint32(head[24:]) + 1) // StatSN
	return head, data, err
}

// Send sends WRITE(10) of one block with its data.
func (s *iscsiSession) Send(number uint64) error {
	at, data := block(s.id, number)
	head := make([]byte, iscsiHeader)
	head[0], head[1] = opCommand, commandWrite
	head[9] = 1 // LUN
	binary.BigEndian.PutUint32(head[16:], uint32(number))
	binary.BigEndian.PutUint32(head[20:], blockSize)
	binary.BigEndian.PutUint32(head[24:], s.command)
	binary.BigEndian.PutUint32(head[28:], s.expected.Load())
	head[32] = scsiWrite10
	binary.BigEndian.PutUint32(head[34:], uint32(at))
	binary.BigEndian.PutUint16(head[39:], 1)
	s.command++
	return s.write(head, data)
}

func (s *iscsiSession) answer() (number uint64, status byte, err error) {
	head, _, err := s.read()
	if err != nil {
		return 0, 0, err
	}
	if head[0] != opCommandAnswer || head[2] != 0 {
		return 0, 0, fmt.Errorf("the target answers %x", head)
	}
	return uint64(binary.BigEndian.Uint32(head[16:])), head[3], nil
}

func (s *iscsiSession) Acknowledged() (uint64, error) {
	number, status, err := s.answer()
	if err == nil && status != 0 {
		err = fmt.Errorf("the target answers status %#x to write %d", status, number)
	}
	return number, err
}
