package ceph

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Reasons are part of the API.
const (
	reasonUnreachable = "ClusterUnreachable"
	reasonFull        = "PoolFull"
	reasonNearlyFull  = "PoolNearlyFull"
	reasonInactive    = "PGsInactive"
	reasonDegraded    = "DataDegraded"
	reasonOSDsDown    = "OSDsDown"
	reasonMonsDown    = "MonitorsDown"
	reasonDamaged     = "DataDamaged"
	reasonMDSDown     = "MetadataServersDown"
	reasonMDSSlow     = "MetadataServersSlow"
	reasonCopyFailed  = "CopyFailed"
	reasonCopying     = "Copying"
)

// checks maps Ceph's health checks to conditions; others do not concern
// volumes.
var checks = map[string]volume.Condition{
	"PG_AVAILABILITY":     {Severity: volume.Inaccessible, Reason: reasonInactive},
	"OSD_FULL":            {Severity: volume.Inaccessible, Reason: reasonFull},
	"POOL_FULL":           {Severity: volume.Inaccessible, Reason: reasonFull},
	"OSD_NEARFULL":        {Severity: volume.Degraded, Reason: reasonNearlyFull},
	"OSD_BACKFILLFULL":    {Severity: volume.Degraded, Reason: reasonNearlyFull},
	"POOL_NEAR_FULL":      {Severity: volume.Degraded, Reason: reasonNearlyFull},
	"PG_DEGRADED":         {Severity: volume.Degraded, Reason: reasonDegraded},
	"OSD_DOWN":            {Severity: volume.Degraded, Reason: reasonOSDsDown},
	"MON_DOWN":            {Severity: volume.Degraded, Reason: reasonMonsDown},
	"PG_DAMAGED":          {Severity: volume.DataLoss, Reason: reasonDamaged},
	"OBJECT_UNFOUND":      {Severity: volume.DataLoss, Reason: reasonDamaged},
	"OSD_SCRUB_ERRORS":    {Severity: volume.DataLoss, Reason: reasonDamaged},
	"OSD_TOO_MANY_REPAIR": {Severity: volume.Degraded, Reason: reasonDegraded},
}

// fsChecks are those that concern only a file system.
var fsChecks = map[string]volume.Condition{
	"MDS_ALL_DOWN":         {Severity: volume.Inaccessible, Reason: reasonMDSDown},
	"FS_WITH_FAILED_MDS":   {Severity: volume.Inaccessible, Reason: reasonMDSDown},
	"FS_DEGRADED":          {Severity: volume.Inaccessible, Reason: reasonMDSDown},
	"MDS_DAMAGE":           {Severity: volume.DataLoss, Reason: reasonDamaged},
	"MDS_SLOW_REQUEST":     {Severity: volume.Degraded, Reason: reasonMDSSlow},
	"MDS_SLOW_METADATA_IO": {Severity: volume.Degraded, Reason: reasonMDSSlow},
}

// healthReport is the output of "health detail".
type healthReport struct {
	Checks map[string]struct {
		Summary struct{ Message string }
		Detail  []struct{ Message string }
	}
}

func parseHealth(text []byte) (healthReport, error) {
	var report healthReport
	if err := json.Unmarshal(text, &report); err != nil {
		return report, errs.Errorf(errs.Internal, "the health report of the cluster is not JSON: %w", err)
	}
	return report, nil
}

// poolRef is a pool for which conditions are wanted.
type poolRef struct {
	name string
	id   int64
}

// conditions returns those that concern one of the pools or the file system
// (empty: none), one for each reason.
func (h healthReport) conditions(pools []poolRef, fs string) []volume.Condition {
	var all []volume.Condition
	for _, check := range slices.Sorted(maps.Keys(h.Checks)) {
		c, known := checks[check]
		ofFS, isOfFS := fsChecks[check]
		if isOfFS {
			c, known = ofFS, fs != ""
		}
		report := h.Checks[check]
		if !known || slices.ContainsFunc(all, func(x volume.Condition) bool { return x.Severity == c.Severity && x.Reason == c.Reason }) {
			continue
		}
		c.Message = fmt.Sprintf("Ceph reports %s: %s", check, report.Summary.Message)
		var details []string
		for _, d := range report.Detail {
			details = append(details, d.Message)
		}
		if isOfFS && concernsFS(details, fs) || !isOfFS && concerns(details, pools) {
			all = append(all, c)
		}
	}
	return all
}

// concerns reports whether details are of one of the pools. Details that name
// no pool or placement group concern all.
func concerns(details []string, pools []poolRef) bool {
	named := false
	for _, d := range details {
		_, rest, isPool := strings.Cut(d, "pool '")
		pgs, isPG := strings.CutPrefix(d, "pg ")
		for _, p := range pools {
			if isPool && strings.HasPrefix(rest, p.name+"'") || isPG && strings.HasPrefix(pgs, fmt.Sprintf("%d.", p.id)) {
				return true
			}
		}
		named = named || isPool || isPG
	}
	return !named
}

// usage is the space of one pool, from "df detail".
type usage struct {
	Name  string
	Stats struct {
		Stored    int64
		Available int64 `json:"max_avail"`
		Quota     int64 `json:"quota_bytes"`
	}
}

func parseUsage(text []byte) ([]usage, error) {
	var report struct{ Pools []usage }
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, errs.Errorf(errs.Internal, "the usage report of the cluster is not JSON: %w", err)
	}
	return report.Pools, nil
}

// free returns the bytes that can still be written.
func (u usage) free() int64 {
	free := u.Stats.Available
	if u.Stats.Quota > 0 {
		free = min(free, u.Stats.Quota-u.Stats.Stored)
	}
	return max(free, 0)
}

// concernsFS reports whether details are of a file system. Details that name
// none concern all.
func concernsFS(details []string, fs string) bool {
	named := false
	for _, d := range details {
		name, isFS := strings.CutPrefix(d, "fs ")
		if isFS && strings.HasPrefix(name, fs+" ") {
			return true
		}
		named = named || isFS
	}
	return !named
}
