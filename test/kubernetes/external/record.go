package external

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// RecordFile is the path of the record, relative to test/kubernetes.
const RecordFile = "external/last-run.json"

// Record has the results of the last full run of each driver.
type Record struct {
	Versions []Version      `json:"versions"`
	Machine  string         `json:"machine"`
	Drivers  []DriverRecord `json:"drivers"`
}

// Version is the version of a program used in a run.
type Version struct {
	Program string `json:"program"`
	Version string `json:"version"`
}

// DriverRecord is a full run of a driver.
type DriverRecord struct {
	Release    string   `json:"release"`
	Driver     string   `json:"driver"`
	Definition string   `json:"definition"` // sum of the definition file
	Date       string   `json:"date"`       // YYYY-MM-DD
	Seconds    int      `json:"seconds"`
	Processes  int      `json:"processes"` // in parallel
	Results    []Result `json:"results"`
}

// Count returns the number of results in these states.
func (d DriverRecord) Count(states ...State) int {
	n := 0
	for _, r := range d.Results {
		if slices.Contains(states, r.State) {
			n++
		}
	}
	return n
}

// Unfinished returns the specs that failed or did not run.
func (d DriverRecord) Unfinished() []Spec {
	var specs []Spec
	for _, r := range d.Results {
		if r.Failed() {
			specs = append(specs, r.Spec)
		}
	}
	return specs
}

// Replace replaces results by those of another attempt.
func (d *DriverRecord) Replace(results []Result) {
	for _, r := range results {
		for i, old := range d.Results {
			if old.Spec == r.Spec {
				r.Attempt = max(old.Attempt, 1) + 1
				d.Results[i] = r
			}
		}
	}
}

// Driver returns the record of a driver, or an empty one.
func (r *Record) Driver(name string) DriverRecord {
	for _, d := range r.Drivers {
		if d.Driver == name {
			return d
		}
	}
	return DriverRecord{Driver: name}
}

// ReadRecord reads a record; a missing file is an empty record.
func ReadRecord(file string) (*Record, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return &Record{}, nil
	}
	if err != nil {
		return nil, err
	}
	r := new(Record)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// Put replaces the record of a driver.
func (r *Record) Put(d DriverRecord) {
	i := slices.IndexFunc(r.Drivers, func(old DriverRecord) bool { return old.Driver == d.Driver })
	if i < 0 {
		r.Drivers = append(r.Drivers, d)
		return
	}
	r.Drivers[i] = d
}

// Write writes the record, one line per result.
func (r *Record) Write(file string) error {
	text, err := r.encode()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

func (r *Record) encode() ([]byte, error) {
	bare := *r
	bare.Drivers = slices.Clone(r.Drivers)
	var lines []string
	for i, d := range bare.Drivers {
		for _, result := range d.Results {
			line, err := json.Marshal(result)
			if err != nil {
				return nil, err
			}
			lines = append(lines, string(line))
		}
		bare.Drivers[i].Results = nil
	}
	text, err := json.MarshalIndent(bare, "", " ")
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	rest, next := string(text), 0
	for _, d := range r.Drivers {
		before, after, _ := strings.Cut(rest, `"results": null`)
		b.WriteString(before + `"results": [` + "\n" + strings.Join(lines[next:next+len(d.Results)], ",\n") + "\n]")
		rest, next = after, next+len(d.Results)
	}
	b.WriteString(rest + "\n")
	return []byte(b.String()), nil
}

// Keep writes the record to its file, and its tables into the page.
func (r *Record) Keep(file, page string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	text, err := Page(string(old), r)
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return errors.Join(r.Write(file), os.WriteFile(page, []byte(text), 0o644))
}
