package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Status is the status of a StorageFenceRemediation.
type Status struct {
	// Term is that of the leader that works for the object. Each leader writes its
	// own first, so that the late writes of an earlier one fail on the
	// resourceVersion.
	Term        int64        `json:"term,omitempty"`
	Conditions  []Condition  `json:"conditions,omitempty"`
	Record      *Record      `json:"record,omitempty"`
	Intent      *Intent      `json:"intent,omitempty"`
	Certificate *Certificate `json:"certificate,omitempty"`
	Release     *Release     `json:"release,omitempty"`
}

// Types of conditions. The first three are NodeHealthCheck's.
const (
	Processing           = "Processing"
	Succeeded            = "Succeeded"
	NodeDeletionExpected = "PermanentNodeDeletionExpected"
	Blocked              = "Blocked" // an administrator has to do what the message says
)

// Condition has the fields of metav1.Condition.
type Condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"` // True, False, Unknown
	Reason             string    `json:"reason"`
	Message            string    `json:"message"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
}

// Record is what was written down about the node before it was fenced. It only
// grows while fences can exist.
type Record struct {
	NodeUID  string    `json:"nodeUID"`
	Machines []Machine `json:"machines"` // the node first, then its DPUs
	Volumes  []Volume  `json:"volumes,omitempty"`
	Clients  []Client  `json:"clients"`
	At       time.Time `json:"at"`
	Digest   string    `json:"digest"`
}

// Machine is a host or a DPU, and its boot.
type Machine struct {
	Name       string `json:"name"`
	MachineID  string `json:"machineID"`
	SystemUUID string `json:"systemUUID"`
	BootID     string `json:"bootID"`
}

// Volume is a volume that the node can have in use. Slices are sorted.
type Volume struct {
	Name         string `json:"name"`                   // PersistentVolume, or namespace/pod/volume
	Plugin       string `json:"plugin"`                 // key of the source in the object: csi, nfs, iscsi, ...
	Driver       string `json:"driver,omitempty"`       // of plugin csi
	Handle       string `json:"handle,omitempty"`       // of plugin csi
	Cluster      string `json:"cluster,omitempty"`      // cluster or server that has the data; of plugin hostPath the path
	Inline       bool   `json:"inline,omitempty"`       // of a pod, without a PersistentVolume
	NoAttachment bool   `json:"noAttachment,omitempty"` // the driver has no VolumeAttachments
	// NoObject: no PersistentVolume of it was found, so that Cluster is not known.
	NoObject bool `json:"noObject,omitempty"`
	// OnNode: the storage target that serves the volume is the lost node itself.
	OnNode bool `json:"onNode,omitempty"`
	// SeenIn names the objects: Pod namespace/name, VolumeAttachment name,
	// volumesInUse.
	SeenIn []string `json:"seenIn"`
}

// Source is where the address of a client comes from.
type Source string

// Sources of addresses.
const (
	FromGrant          Source = "grant"           // recorded when a volume was granted
	FromStorageNetwork Source = "storage network" // configuration
	FromNode           Source = "node"            // addresses of the Node object
	FromReport         Source = "report"          // of a process on the node, such as the sidecar of CSI-Addons
)

// Client is a client of the storage as one source has it. Slices are sorted.
type Client struct {
	Machine   string       `json:"machine"` // Machine.Name
	Source    Source       `json:"source"`
	Backend   string       `json:"backend,omitempty"` // that the client uses; empty for any
	Addresses []netip.Addr `json:"addresses"`
	// Rejected are texts of the source that are no single address.
	Rejected []string `json:"rejected,omitempty"`
}

// Intent is what is fenced. It is in the status before the first fence.
type Intent struct {
	Record  string    `json:"record"` // digest
	Targets []Target  `json:"targets"`
	At      time.Time `json:"at"`
	Digest  string    `json:"digest"`
}

// Target is what one backend fences.
type Target struct {
	Backend   string       `json:"backend"`
	Addresses []netip.Addr `json:"addresses"` // sorted, unique
}

// Certificate states that each target of an intent was read back after the
// intent was written. Its digest covers record and intent by their digests.
type Certificate struct {
	Record string    `json:"record"` // digest
	Intent string    `json:"intent"` // digest
	Proofs []Proof   `json:"proofs"`
	At     time.Time `json:"at"`
	Digest string    `json:"digest"`
}

// Proof is how the fence of one target was proved.
type Proof struct {
	Backend   string       `json:"backend"`
	Addresses []netip.Addr `json:"addresses"`
	Evidence  []string     `json:"evidence,omitempty"`
	At        time.Time    `json:"at"` // when the read began
}

// Release allows to lift the fences. It is final for the object.
type Release struct {
	Record   string     `json:"record"` // digest
	Machines []Returned `json:"machines"`
	At       time.Time  `json:"at"`
	// Lifted are the backends where it was read that no fence is left. That nothing is
	// recorded there proves it only with this: records can be removed by others.
	Lifted []string `json:"lifted,omitempty"`
}

// Returned is why a recorded machine cannot write any more.
type Returned struct {
	Name   string `json:"name"`
	BootID string `json:"bootID,omitempty"` // the new boot of the same machine; empty if an administrator confirmed
}

// digest returns the SHA-256 of the JSON of a value whose own digest is empty.
func digest(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("plan: %T has no JSON: %v", value, err)) // the types above all have one
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Verify returns what is wrong with the certificate: a digest that is not that
// of its text, or a record or intent that it is not for.
func (s Status) Verify() error {
	switch {
	case s.Record == nil || s.Intent == nil || s.Certificate == nil:
		return errors.New("the remediation has no certificate")
	case s.Record.Digest != s.Record.sealed().Digest:
		return errors.New("the record was changed: its digest differs")
	case s.Intent.Digest != s.Intent.sealed().Digest:
		return errors.New("the intent was changed: its digest differs")
	case s.Certificate.Digest != s.Certificate.sealed().Digest:
		return errors.New("the certificate was changed: its digest differs")
	case s.Certificate.Record != s.Record.Digest || s.Intent.Record != s.Record.Digest:
		return errors.New("the certificate is for another record")
	case s.Certificate.Intent != s.Intent.Digest:
		return errors.New("the certificate is for another intent")
	}
	return nil
}

func (r Record) sealed() *Record {
	r.Digest = ""
	r.Digest = digest(r)
	return &r
}

func (i Intent) sealed() *Intent {
	i.Digest = ""
	i.Digest = digest(i)
	return &i
}

func (c Certificate) sealed() *Certificate {
	c.Digest = ""
	c.Digest = digest(c)
	return &c
}
