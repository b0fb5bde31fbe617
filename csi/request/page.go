package request

import (
	"encoding/base64"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Page asks for a part of a list in the order of ids.
type Page struct {
	// Limit is the most entries that may be returned, 0 for all.
	Limit int
	// After is the last id of the page before, empty for the first one. It
	// need not exist any more.
	After string
}

// List tells the lists apart, so that the token of one is no token of another.
type List string

const (
	ListOfVolumes   List = "volumes"
	ListOfSnapshots List = "snapshots"
	ListOfHealth    List = "health"
)

const tokenVersion = "1"

// tokenEncoding refuses spellings that it would not write itself.
var tokenEncoding = base64.RawURLEncoding.Strict()

// Token returns the token that continues a list behind an id.
func (l List) Token(after string) string {
	return tokenEncoding.EncodeToString([]byte(tokenVersion + ":" + string(l) + ":" + after))
}

func (l List) parse(token string) (after string, err error) {
	plain, err := tokenEncoding.DecodeString(token)
	prefix := tokenVersion + ":" + string(l) + ":"
	id, ours := strings.CutPrefix(string(plain), prefix)
	if err != nil || !ours || volume.CheckID(id) != nil {
		return "", errs.Errorf(errs.BadToken, "starting_token %s is not one that this plugin gave out for this list; start again without a token", errs.Quote(token))
	}
	return id, nil
}

// parsePage translates max_entries and starting_token.
func (l List) parsePage(maxEntries int32, token string) (Page, error) {
	if maxEntries < 0 {
		return Page{}, invalidf("max_entries is %d; it cannot be negative", maxEntries)
	}
	p := Page{Limit: int(maxEntries)}
	if token == "" {
		return p, nil
	}
	var err error
	p.After, err = l.parse(token)
	return p, err
}

// ListVolumes checks a ListVolumesRequest. BadToken: the token.
func ListVolumes(r *csi.ListVolumesRequest) (Page, error) {
	return ListOfVolumes.parsePage(r.GetMaxEntries(), r.GetStartingToken())
}

// ControllerListVolumeHealth checks a ControllerListVolumeHealthRequest.
// BadToken: the token.
func ControllerListVolumeHealth(r *csi.ControllerListVolumeHealthRequest) (Page, error) {
	return ListOfHealth.parsePage(r.GetMaxEntries(), r.GetStartingToken())
}

// SnapshotList asks for snapshots, of one source or with one id where these
// are set.
type SnapshotList struct {
	Page
	Source   volume.ID
	Snapshot volume.SnapshotID
}

// ListSnapshots checks a ListSnapshotsRequest. BadToken: the token.
func ListSnapshots(r *csi.ListSnapshotsRequest) (SnapshotList, error) {
	if err := firstError(
		checkString("source_volume_id", r.GetSourceVolumeId(), MaxString),
		checkString("snapshot_id", r.GetSnapshotId(), MaxString),
	); err != nil {
		return SnapshotList{}, err
	}
	page, err := ListOfSnapshots.parsePage(r.GetMaxEntries(), r.GetStartingToken())
	return SnapshotList{Page: page, Source: volume.ID(r.GetSourceVolumeId()), Snapshot: volume.SnapshotID(r.GetSnapshotId())}, err
}
