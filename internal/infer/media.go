package infer

// MediaKind is the kind of a part of a conversation besides its text.
type MediaKind uint8

// The kinds.
const (
	MediaImage MediaKind = iota
	MediaAudio
	MediaVideo
	NumMediaKinds
)

var mediaNames = [NumMediaKinds]string{"image", "audio", "video"}

// String returns the word of chat templates and engines for the kind.
func (k MediaKind) String() string { return mediaNames[k] }

// Carries is what a wire must carry for media of the kind.
func (k MediaKind) Carries() Carries { return CarriesImage << k }

// CarriesMedia has the members of all kinds of media.
const CarriesMedia = CarriesImage | CarriesAudio | CarriesVideo

// Media is a part of a conversation besides its text: by reference or as data.
type Media struct {
	Kind MediaKind
	// URL is an http or https URL from which the engine fetches the media; empty if
	// Data holds them. weir fetches nothing itself.
	URL string
	// Type is the media type of Data, such as image/png.
	Type string
	// Data is base64 in the standard alphabet with padding, checked, and not empty.
	// It may share memory with the caller's body and must not be changed.
	Data []byte
}
