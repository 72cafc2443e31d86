package keyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"weir/internal/config"
	"weir/internal/disk"
)

// Update changes the lines of a keys file, and puts the result in its place at once, if it is a
// keys file again. A file that does not exist is an empty one. Two updates at the same time
// happen one after the other, also if two processes make them.
func Update(path string, admin bool, change func(lines []string, file *File, root *config.Section) ([]string, error)) error {
	if at, err := filepath.EvalSymlinks(path); err == nil {
		path = at // a link stays one
	}
	unlock, err := disk.Lock(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer unlock()
	data, err := disk.Read(path, disk.MaxKeys)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	changed, err := edited(data, admin, change)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if bytes.Equal(changed, data) {
		return nil
	}
	if _, err := ParseFile(changed, admin); err != nil {
		return fmt.Errorf("%s stays as it is: %w", path, err)
	}
	return disk.Replace(path, changed)
}

// edited returns the text of a file with its lines changed.
func edited(data []byte, admin bool, change func(lines []string, file *File, root *config.Section) ([]string, error)) ([]byte, error) {
	file, err := ParseFile(data, admin)
	if err != nil {
		return nil, err
	}
	root, err := config.ParseSections(data)
	if err != nil {
		return nil, err
	}
	lines, err := change(linesOf(data), file, root)
	if err != nil {
		return nil, err
	}
	return textOfLines(lines), nil
}

func linesOf(data []byte) []string {
	text := strings.TrimSuffix(string(data), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func textOfLines(lines []string) []byte { return []byte(strings.Join(lines, "\n") + "\n") }
