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

// checks maps Ceph's health checks to conditions; others do not concern
// volumes.
var checks = map[string]volume.Condition{
	"PG_AVAILABILITY":      {Severity: volume.Inaccessible, Reason: volume.ReasonPGsInactive},
	"OSD_FULL":             {Severity: volume.Inaccessible, Reason: volume.ReasonPoolFull},
	"POOL_FULL":            {Severity: volume.Inaccessible, Reason: volume.ReasonPoolFull},
	"OSD_NEARFULL":         {Severity: volume.Degraded, Reason: volume.ReasonPoolNearlyFull},
	"OSD_BACKFILLFULL":     {Severity: volume.Degraded, Reason: volume.ReasonPoolNearlyFull},
	"POOL_NEAR_FULL":       {Severity: volume.Degraded, Reason: volume.ReasonPoolNearlyFull},
	"PG_DEGRADED":          {Severity: volume.Degraded, Reason: volume.ReasonDataDegraded},
	"OSD_DOWN":             {Severity: volume.Degraded, Reason: volume.ReasonOSDsDown},
	"MON_DOWN":             {Severity: volume.Degraded, Reason: volume.ReasonMonitorsDown},
	"PG_DAMAGED":           {Severity: volume.DataLoss, Reason: volume.ReasonDataDamaged},
	"OBJECT_UNFOUND":       {Severity: volume.DataLoss, Reason: volume.ReasonDataDamaged},
	"OSD_SCRUB_ERRORS":     {Severity: volume.DataLoss, Reason: volume.ReasonDataDamaged},
	"OSD_TOO_MANY_REPAIRS": {Severity: volume.Degraded, Reason: volume.ReasonDataDegraded},
}

// fsChecks are those that concern only a file system.
var fsChecks = map[string]volume.Condition{
	"MDS_ALL_DOWN":         {Severity: volume.Inaccessible, Reason: volume.ReasonMDSDown},
	"FS_WITH_FAILED_MDS":   {Severity: volume.Inaccessible, Reason: volume.ReasonMDSDown},
	"FS_DEGRADED":          {Severity: volume.Inaccessible, Reason: volume.ReasonMDSDown},
	"MDS_READ_ONLY":        {Severity: volume.Inaccessible, Reason: volume.ReasonMDSDown},
	"MDS_DAMAGE":           {Severity: volume.DataLoss, Reason: volume.ReasonDataDamaged},
	"MDS_SLOW_REQUEST":     {Severity: volume.Degraded, Reason: volume.ReasonMDSSlow},
	"MDS_SLOW_METADATA_IO": {Severity: volume.Degraded, Reason: volume.ReasonMDSSlow},
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
// (empty: none), one for each reason. parents are pools from which a volume only
// reads: how full they are does not concern it.
func (h healthReport) conditions(pools []poolRef, fs string, parents ...poolRef) []volume.Condition {
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
		var details []string
		for _, d := range report.Detail {
			details = append(details, d.Message)
		}
		used := pools
		if c.Reason != volume.ReasonPoolFull && c.Reason != volume.ReasonPoolNearlyFull {
			used = slices.Concat(pools, parents)
		}
		concerned := concerns(details, used)
		if isOfFS {
			concerned = concernsFS(details, fs)
		}
		if concerned >= 0 {
			what := append(details[concerned:], report.Summary.Message)[0]
			all = append(all, volume.NewCondition(c.Severity, c.Reason, check+": "+what))
		}
	}
	return all
}

// listedPGs is how many placement groups Ceph lists at least before it leaves
// out others (mon_health_max_detail).
const listedPGs = 50

// concerns returns the first detail that is of one of the pools, or -1. Details
// that name no pool or placement group concern all: then it is 0. A list of
// placement groups that can lack those of the pools concerns them: then it is the
// number of details.
func concerns(details []string, pools []poolRef) int {
	named, listed := 0, 0
	for i, d := range details {
		_, rest, isPool := strings.Cut(d, "pool '")
		pgs, isPG := strings.CutPrefix(d, "pg ")
		for _, p := range pools {
			if isPool && strings.HasPrefix(rest, p.name+"'") || isPG && strings.HasPrefix(pgs, fmt.Sprintf("%d.", p.id)) {
				return i
			}
		}
		if isPool || isPG {
			named = -1
		}
		if isPG {
			listed++
		}
	}
	if listed > listedPGs {
		return len(details)
	}
	return named
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

// concernsFS is concerns for a file system.
func concernsFS(details []string, fs string) int {
	named := 0
	for i, d := range details {
		name, isFS := strings.CutPrefix(d, "fs ")
		if isFS && strings.HasPrefix(name, fs+" ") {
			return i
		}
		if isFS {
			named = -1
		}
	}
	return named
}
