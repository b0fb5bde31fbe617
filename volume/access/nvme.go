package access

import (
	"crypto/sha1"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// NVMe is a namespace of an NVMe-oF subsystem.
type NVMe struct {
	Transport string           // "tcp" or "rdma"
	Paths     []netip.AddrPort // in order of preference, without duplicates
	NQN       string           // of the subsystem

	// All that are set must match. If none is set, the subsystem must have
	// exactly one namespace.
	NSID  uint32
	UUID  string // lower case, with dashes
	NGUID string // 32 digits, lower case

	HostNQN                  string // empty: the initiator uses its own
	Timeouts                 Timeouts
	IOQueues                 int // 0: the initiator chooses
	HeaderDigest, DataDigest bool

	// AcceptUUIDChange: it can differ from before.
	AcceptUUIDChange bool
	// AcceptFlushLoss: btrfs is mounted although the kernel can lose a flush.
	AcceptFlushLoss bool

	// Names of secret keys, never the keys.
	DHChapKey, DHChapCtrlrKey, TLSKey string
}

// Protocol returns "nvme". The value of targetType is the transport.
func (NVMe) Protocol() string { return protocolNVMe }

const (
	protocolNVMe = "nvme"

	keyAddr        = "targetAddr"
	keyPort        = "targetPort"
	keyConnections = "connections"
	keyNQN         = "nqn"
	keyNSID        = "nsId"
	keyUUID        = "uuid"
	keyNGUID       = "nguid"
	keyAccept      = "acceptUuidChange"
	keyFlushLoss   = "acceptFlushLoss"
	keyHostNQN     = "hostNQN"
	keyLoss        = "ctrlLossTmo"
	keyDelay       = "reconnectDelay"
	keyFast        = "fastIOFailTmo"
	keyQueues      = "nrIoQueues"
	keyHDigest     = "headerDigest"
	keyDDigest     = "dataDigest"
	keyDHChap      = "dhchapKey"
	keyDHChapCtrlr = "dhchapCtrlrKey"
	keyTLS         = "tlsKey"
)

func nvmeDialect() dialect {
	return dialect{
		protocol: protocolNVMe,
		keys: map[string][]string{
			keyType: {"trtype", "transport"}, keyAddr: {"traddr"}, keyPort: {"trsvcid"}, keyConnections: nil,
			keyNQN: {"subnqn"}, keyNSID: nil, keyUUID: nil, keyNGUID: nil, keyAccept: nil, keyFlushLoss: nil, keyHostNQN: nil,
			keyLoss:  {"ctrlr_loss_timeout_sec", "ctrl_loss_tmo"},
			keyDelay: {"reconnect_delay_sec", "reconnect_delay"},
			keyFast:  {"fast_io_fail_timeout_sec", "fast_io_fail_tmo"}, keyQueues: {"num_io_queues", "nr_io_queues"},
			keyHDigest: {"hdgst"}, keyDDigest: {"ddgst"},
			keyDHChap: {"dhchap_key"}, keyDHChapCtrlr: {"dhchap_ctrlr_key"}, keyTLS: {"psk", "tls_key"},
		},
		identity: []string{keyNQN, keyNSID, keyUUID, keyNGUID},
		groups:   [][2]string{{keyAddr, keyConnections}, {keyConnections, keyAddr}, {keyConnections, keyPort}},
		build:    buildNVMe,
	}
}

// transportOf returns the transport for a value of targetType, or "". NVDA_TCP
// is the name of TCP in NVIDIA's SPDK.
func transportOf(word string) string {
	switch strings.ToLower(word) {
	case "tcp", "nvme", "nvmf", "nvme-tcp", "nvme/tcp", "nvme_tcp", "nvda_tcp":
		return "tcp"
	case "rdma", "nvme-rdma", "nvme/rdma", "nvme_rdma":
		return "rdma"
	}
	return ""
}

// nqnPattern is the general form of NQNs in the NVMe base specification: a
// date, a reverse domain name, and a name, at most 223 bytes.
var nqnPattern = pattern(`^nqn\.[0-9]{4}-[0-9]{2}\.[!-~]+$`)

func (f fields) nqn(key string) (string, error) {
	if s := f[key]; s != "" {
		if err := CheckNQN(s); err != nil {
			return "", fmt.Errorf("%s %w", key, err)
		}
	}
	return f[key], nil
}

// CheckNQN validates an NQN.
func CheckNQN(s string) error {
	if len(s) > 223 || !nqnPattern().MatchString(s) {
		return fmt.Errorf("%s is not an NQN; an example is nqn.2016-06.io.spdk:cnode1, with at most 223 characters", Quote(s))
	}
	return nil
}

func buildNVMe(f fields) (Access, error) {
	n := NVMe{Transport: "tcp"}
	if w := f[keyType]; w != "" {
		if n.Transport = transportOf(w); n.Transport == "" {
			return nil, fmt.Errorf("%s %s is not an NVMe transport; known are tcp and rdma", keyType, Quote(w))
		}
	}
	if f[keyNQN] == "" {
		return nil, fmt.Errorf("%s is missing: give the NQN of the subsystem", keyNQN)
	}
	for _, step := range []func(fields) error{n.readTarget, n.readNamespace, n.readTuning, n.readKeys} {
		if err := step(f); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (n *NVMe) readTarget(f fields) (err error) {
	if n.NQN, err = f.nqn(keyNQN); err != nil {
		return err
	}
	if n.HostNQN, err = f.nqn(keyHostNQN); err != nil {
		return err
	}
	n.Paths, err = f.paths()
	return err
}

func (n *NVMe) readNamespace(f fields) (err error) {
	if s := f[keyNSID]; s != "" {
		id, err := strconv.ParseUint(s, 10, 32)
		if err != nil || id == 0 || id >= 0xfffffffe {
			return fmt.Errorf("%s %s is not a namespace ID; valid are 1 to 4294967293", keyNSID, Quote(s))
		}
		n.NSID = uint32(id)
	}
	if s := f[keyUUID]; s != "" {
		if n.UUID = strings.ToLower(s); !uuidPattern().MatchString(n.UUID) {
			return fmt.Errorf("%s %s is not a UUID", keyUUID, Quote(s))
		}
	}
	if s := f[keyNGUID]; s != "" {
		if n.NGUID = strings.ToLower(strings.ReplaceAll(s, "-", "")); !nguidPattern().MatchString(n.NGUID) {
			return fmt.Errorf("%s %s is not 32 hexadecimal digits", keyNGUID, Quote(s))
		}
	}
	if n.AcceptFlushLoss, err = f.flag(keyFlushLoss); err != nil {
		return err
	}
	n.AcceptUUIDChange, err = f.flag(keyAccept)
	return err
}

var nguidPattern = pattern(`^[0-9a-f]{32}$`)

func (n *NVMe) readTuning(f fields) (err error) {
	if n.Timeouts, err = f.timeouts(); err != nil {
		return err
	}
	if n.HeaderDigest, err = f.flag(keyHDigest); err != nil {
		return err
	}
	if n.DataDigest, err = f.flag(keyDDigest); err != nil {
		return err
	}
	if s := f[keyQueues]; s != "" {
		q, err := strconv.ParseUint(s, 10, 16)
		if err != nil || q == 0 {
			return fmt.Errorf("%s %s is not a number from 1 to 65535", keyQueues, Quote(s))
		}
		n.IOQueues = int(q)
	}
	return nil
}

func (n *NVMe) readKeys(f fields) (err error) {
	if n.DHChapKey, err = f.reference(keyDHChap); err != nil {
		return err
	}
	if n.DHChapCtrlrKey, err = f.reference(keyDHChapCtrlr); err != nil {
		return err
	}
	if n.TLSKey, err = f.reference(keyTLS); err != nil {
		return err
	}
	switch {
	case n.DHChapCtrlrKey != "" && n.DHChapKey == "":
		return fmt.Errorf("%s requires %s: the target authenticates only to an authenticated host", keyDHChapCtrlr, keyDHChap)
	case n.TLSKey != "" && n.Transport != "tcp":
		return fmt.Errorf("%s requires %s tcp, not %s", keyTLS, keyType, n.Transport)
	}
	return nil
}

func (f fields) flag(key string) (bool, error) {
	if f[key] == "" {
		return false, nil
	}
	on, err := strconv.ParseBool(f[key])
	if err != nil {
		return false, fmt.Errorf("%s %s is neither true nor false", key, Quote(f[key]))
	}
	return on, nil
}

func (n NVMe) encode() map[string]string {
	out := map[string]string{keyType: n.Transport, keyNQN: n.NQN}
	encodePaths(out, n.Paths)
	n.Timeouts.encode(out)
	for key, value := range map[string]string{
		keyUUID: n.UUID, keyNGUID: n.NGUID, keyHostNQN: n.HostNQN,
		keyDHChap: n.DHChapKey, keyDHChapCtrlr: n.DHChapCtrlrKey, keyTLS: n.TLSKey,
	} {
		set(out, key, value)
	}
	if n.NSID != 0 {
		out[keyNSID] = strconv.FormatUint(uint64(n.NSID), 10)
	}
	if n.IOQueues != 0 {
		out[keyQueues] = strconv.Itoa(n.IOQueues)
	}
	for key, on := range map[string]bool{
		keyAccept: n.AcceptUUIDChange, keyFlushLoss: n.AcceptFlushLoss, keyHDigest: n.HeaderDigest, keyDDigest: n.DataDigest,
	} {
		if on {
			out[key] = "true"
		}
	}
	return out
}

func set(out map[string]string, key, value string) {
	if value != "" {
		out[key] = value
	}
}

const uuidNQN = "nqn.2014-08.org.nvmexpress:uuid:"

// nodes is the UUID namespace of host NQNs. It never changes: access lists of
// targets contain the derived NQNs.
var nodes = [16]byte{0x5d, 0x0e, 0x6b, 0x1c, 0x93, 0x4f, 0x4a, 0x27, 0xb8, 0x61, 0x2e, 0xc4, 0x70, 0x9a, 0xd3, 0x58}

// HostNQN derives the host NQN of a node from its name, in the UUID form of the
// NVMe specification. Nodes of clusters that share a target need a prefix
// ("east/node-1").
func HostNQN(node string) string { return uuidNQN + nameUUID(node) }

// HostID returns the host ID for a host NQN: newer kernels demand a pair that
// does not change. It is the UUID of the NQN, if it has one, as nvme-cli does.
func HostID(hostNQN string) string {
	if id, found := strings.CutPrefix(hostNQN, uuidNQN); found && uuidPattern().MatchString(strings.ToLower(id)) {
		return strings.ToLower(id)
	}
	return nameUUID(hostNQN)
}

// nameUUID returns a UUID of version 5 (RFC 9562, section 5.5).
func nameUUID(name string) string {
	h := sha1.New()
	h.Write(nodes[:])
	h.Write([]byte(name))
	u := h.Sum(nil)[:16]
	u[6], u[8] = u[6]&0x0f|0x50, u[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
